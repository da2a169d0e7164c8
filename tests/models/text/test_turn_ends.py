"""The token that ends a turn in the chat template, where it is not the tokenizer's eos token."""

import json
from pathlib import Path

import jax
import pytest

from gigpo_jax.config import default_config
from gigpo_jax.core.errors import InputError
from gigpo_jax.models import decoder
from gigpo_jax.models.files.save_weights import save_hf
from gigpo_jax.models.text.continuation import encode_continuation
from gigpo_jax.models.text.tokenizer import Tokenizer, check_vocabulary, load_tokenizer
from gigpo_jax.modes import sft
from gigpo_jax.policy import Policy
from gigpo_jax.rollout.demonstrations import DemonstratedTurn, Demonstration
from tests.models.shapes import SMALL
from tests.models.text.folders import CHATML, END_OF_TEXT, END_OF_TURN, write_model, write_tokenizer

ONE_MESSAGE = "{{ messages[0]['content'] }}{% if messages|length > 1 %}{{ raise_exception('one message') }}{% endif %}"
# As Gemma's: a system message stands in the first user message, other roles must alternate.
ALTERNATING = (
    "{% if messages[0]['role'] == 'system' %}{% set first = messages[0]['content'] + '\\n\\n' %}"
    "{% set turns = messages[1:] %}{% else %}{% set first = '' %}{% set turns = messages %}{% endif %}"
    "{% for m in turns %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "{{ '<start_of_turn>' + ('model' if m['role'] == 'assistant' else m['role']) + '\\n' }}"
    "{{ (first if loop.first else '') + m['content'] | trim }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"
)
NO_END = "{% for m in messages %}{{ '<|im_start|>' + m['content'] }}{% endfor %}"


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    """As of a base model: texts end with another token than turns."""
    folder = write_tokenizer(
        tmp_path / "base", eos=END_OF_TEXT, generation={"eos_token_id": [256, 7]}
    )
    return load_tokenizer(folder)


def test_the_end_of_a_turn_ends_a_response(tokenizer: Tokenizer) -> None:
    turn_end = tokenizer.token_id(END_OF_TURN)
    assert tokenizer.stop_token_ids == (turn_end, tokenizer.token_id(END_OF_TEXT), 7)
    response = [*tokenizer.encode("go"), turn_end]
    rest = encode_continuation(tokenizer, "next", response)
    text = tokenizer.decode([*response, *rest], keep_special=True)
    assert text == "go<|im_end|>\n<|im_start|>user\nnext<|im_end|>\n<|im_start|>assistant\n"


def test_sft_teaches_the_end_of_a_turn(tokenizer: Tokenizer) -> None:
    # A name of the environment is no end.
    turn = DemonstratedTurn("a room", "<action>take <|im_end|></action>", ())
    policy = Policy(SMALL["mha_tied"], None, tokenizer)
    config = default_config()
    config.sampling.stop = ()
    [[sample]] = sft.encode_demonstrations([Demonstration((turn,), True)], policy, config)
    text = tokenizer.decode(sample.response_tokens.tolist(), keep_special=True)
    assert text == "<action>take < |im_end|></action><|im_end|>"


def test_exported_folders_end_where_the_policy_does(tokenizer: Tokenizer, tmp_path: Path) -> None:
    config = write_model(tmp_path / "model", eos=END_OF_TEXT)
    params = decoder.init_params(config, jax.random.key(0))
    save_hf(tmp_path / "export", config, params, tokenizer=tokenizer)
    generation = json.loads((tmp_path / "export" / "generation_config.json").read_text())
    assert generation["eos_token_id"] == [258, 256, 7]


@pytest.mark.parametrize(
    ("template", "ids"),
    [
        (CHATML, (258, 256)),
        (CHATML.replace(" + '<|im_end|>'", " + ' <|im_end|>'"), (258, 256)),
        (CHATML.replace("'<|im_end|>'", "'###'"), (256,)),
        (NO_END, (256,)),
        (ONE_MESSAGE, (256,)),
        (None, (256,)),
    ],
    ids=["ends", "ends behind a space", "ends with text", "does not end", "refuses", "no template"],
)
def test_the_template_names_the_end(
    template: str | None, ids: tuple[int, ...], tmp_path: Path
) -> None:
    folder = write_tokenizer(tmp_path / "model", template=template, eos=END_OF_TEXT)
    assert load_tokenizer(folder).stop_token_ids == ids


def test_turns_as_gemma_has_them(tmp_path: Path) -> None:
    """A system message begins the first user message; the end of a turn is no end of a text."""
    special = ("<pad>", "<eos>", "<start_of_turn>", "<end_of_turn>")
    folder = write_tokenizer(tmp_path / "model", template=ALTERNATING, eos="<eos>", special=special)
    tokenizer = load_tokenizer(folder)
    end = tokenizer.token_id("<end_of_turn>")
    assert tokenizer.stop_token_ids == (end, tokenizer.token_id("<eos>"))
    prompt = tokenizer.encode_chat("a room", system="be brief")
    response = [*tokenizer.encode("go"), end]
    rest = encode_continuation(tokenizer, "next", response)
    text = tokenizer.decode([*prompt, *response, *rest], keep_special=True)
    assert text == (
        "<start_of_turn>user\nbe brief\n\na room<end_of_turn>\n<start_of_turn>model\n"
        "go<end_of_turn>\n<start_of_turn>user\nnext<end_of_turn>\n<start_of_turn>model\n"
    )


def test_a_special_token_that_is_never_used_needs_no_row(tmp_path: Path) -> None:
    """As the image token of Gemma's text models, the last id of their tokenizers."""
    image = "<image_soft_token>"
    special = ("<pad>", "<eos>", "<start_of_turn>", "<end_of_turn>", image)
    for name, end, rows in (("unused", "<eos>", 1), ("used", image, 0)):
        folder = write_tokenizer(
            tmp_path / name, template=ALTERNATING, eos=end, special=special, tags=()
        )
        tokenizer = load_tokenizer(folder)
        size = tokenizer.vocab_size
        assert tokenizer.token_id(image) == size - 1
        assert check_vocabulary(tokenizer, size - rows, folder) == 0
        with pytest.raises(InputError, match=f"{size - rows} ids, the embedding {size - rows - 1}"):
            check_vocabulary(tokenizer, size - rows - 1, folder)
        assert size - 1 not in tokenizer.encode_chat(f"look at {image}")
