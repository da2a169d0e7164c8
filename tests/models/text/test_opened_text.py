"""Templates whose generation prompt begins the response, such as with <think>."""

from pathlib import Path

import pytest

from gigpo_jax.config import default_config
from gigpo_jax.env_bridge.actions import parse_tagged
from gigpo_jax.models.text.tokenizer import load_tokenizer
from gigpo_jax.modes import sft
from gigpo_jax.policy import Policy
from gigpo_jax.rollout.demonstrations import DemonstratedTurn, Demonstration
from tests.models.shapes import SMALL
from tests.models.text.folders import CHATML, opens_response, write_tokenizer

# Qwen3-Thinking opens a thought; Qwen3 without thinking closes it too, and writes an empty one into
# the last response of a chat alone.
CLOSED = "<think>\n\n</think>\n\n"
LAST = CHATML.replace(
    "m['role'] + '\\n'",
    "m['role'] + '\\n' + ('<think>\\n\\n</think>\\n\\n' if loop.last and m['role'] == 'assistant' else '')",
)
TEMPLATES = {
    "none": (CHATML, ""),
    "open": (opens_response("<think>\n"), "<think>\n"),
    "closed": (
        LAST.replace("assistant\\n' }}", "assistant\\n<think>\\n\\n</think>\\n\\n' }}"),
        CLOSED,
    ),
    "last response": (LAST, ""),
    "another text": (opens_response("Thought: "), "Thought: "),
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_opened_text_is_what_responses_of_the_history_do_not_have(
    name: str, tmp_path: Path
) -> None:
    template, opened = TEMPLATES[name]
    tokenizer = load_tokenizer(write_tokenizer(tmp_path / "model", template=template))
    assert tokenizer.opened_text == opened
    prompt = tokenizer.decode(tokenizer.encode_chat("go"), keep_special=True)
    assert prompt.endswith(f"<|im_start|>assistant\n{opened}")


def test_a_tag_that_the_prompt_opened_counts(tmp_path: Path) -> None:
    """Reported of others in trl#6966 and ms-swift#9764; `test_rollout` plays such a template."""
    folder = write_tokenizer(tmp_path / "model", template=TEMPLATES["open"][0])
    tokenizer = load_tokenizer(folder)
    sampled = "I look.\n</think>\n\n<action>look</action>"
    assert not parse_tagged(sampled).valid
    assert parse_tagged(tokenizer.opened_text + sampled).valid


@pytest.mark.parametrize(
    ("name", "response"),
    [
        ("none", "<think></think><action>look</action><|im_end|>"),
        ("open", "</think><action>look</action><|im_end|>"),
        ("closed", "<action>look</action><|im_end|>"),
        ("another text", "<think></think><action>look</action><|im_end|>"),
    ],
)
def test_sft_teaches_the_rest_of_a_response(name: str, response: str, tmp_path: Path) -> None:
    folder = write_tokenizer(tmp_path / "model", template=TEMPLATES[name][0])
    tokenizer = load_tokenizer(folder)
    policy = Policy(SMALL["mha_tied"], None, tokenizer)
    config = default_config()
    config.sampling.stop = ()
    turn = DemonstratedTurn("a room", "<think></think><action>look</action>", ())
    [[sample]] = sft.encode_demonstrations([Demonstration((turn,), True)], policy, config)
    assert tokenizer.decode(sample.response_tokens.tolist(), keep_special=True) == response
