"""Action spans, token by token."""

import time
from pathlib import Path

import numpy as np
import pytest

from gigpo_jax.learner.spans import action_masks
from gigpo_jax.models.text.tokenizer import Tokenizer, load_tokenizer
from gigpo_jax.models.text.word_tokenizer import word_tokenizer

MODEL = Path(__file__).parents[2] / "models/alfworld_tiny"


class Characters(Tokenizer):
    """A token a byte: tags and characters are split between tokens."""

    def __init__(self) -> None:
        """Needs no files."""

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, ids: list[int]) -> str:
        return bytes(ids).decode("utf-8", "replace")


@pytest.mark.parametrize(
    "tokenizer", [Characters(), load_tokenizer(MODEL), word_tokenizer(["go to desk"])]
)
@pytest.mark.parametrize(
    ("tags", "prefix", "span", "suffix"),
    [
        (("action",), "<think>go</think>", "<action>go to desk</action>", ""),
        (("action",), "", "<action></action>", "go <action>desk</action>"),
        (
            ("search", "answer"),
            "<action>go</action>",
            "<answer>desk</answer>",
            "<search>go</search>",
        ),
        (("action",), "<think>go</think> to desk", "", ""),
        (("action",), "desk <action>go", "", ""),
    ],
)
def test_the_mask_is_that_of_the_span(tokenizer, tags, prefix, span, suffix) -> None:
    token_groups = [tokenizer.encode(text) for text in (prefix, span, suffix)]
    mask = action_masks(tokenizer, tags)(np.concatenate(token_groups).astype(np.int32))
    assert mask.tolist() == [n == 1 for n, tokens in enumerate(token_groups) for _ in tokens]


def test_characters_split_between_tokens_and_special_tokens_do_not_matter() -> None:
    mask = action_masks(Characters(), ("action",))
    prefix = Characters().encode("é ü")
    span = Characters().encode("<Action>go ö</ACTION>")
    assert mask(np.array(prefix + span)).tolist() == [False] * len(prefix) + [True] * len(span)
    words = word_tokenizer(["go"])
    end = words.stop_token_ids[0]
    tokens = [*words.encode("<action>go</action>"), end]
    assert action_masks(words, ("action",))(np.array(tokens)).tolist() == [True, True, True, False]


@pytest.mark.parametrize("end", ["", "</answer>"])
def test_responses_are_read_in_linear_time(end: str) -> None:
    tokens = np.frombuffer(b"<search>" * 20_000 + end.encode(), np.uint8).astype(np.int32)
    started = time.process_time()
    assert not action_masks(Characters(), ("search", "answer"))(tokens).any()
    assert time.process_time() - started < 5
