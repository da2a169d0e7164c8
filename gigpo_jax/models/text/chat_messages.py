"""Chats of any messages and tools, as clients of the endpoint send them."""

from collections.abc import Mapping, Sequence
from typing import Any

from gigpo_jax.models.text.tokenizer import Tokenizer


def chat_text(
    tokenizer: Tokenizer, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] = ()
) -> str:
    """Returns the text of a chat with the generation prompt; `Tokenizer.encode` gives the ids.

    Messages have "role", "content" and other keys that the template reads; `tools` are definitions
    of functions, JSON values, for templates that show them. Special tokens in them lose their
    meaning, as in `Tokenizer.encode_chat`, and errors are the same.
    """
    broken_tools = _break_special(tokenizer, tools)
    return tokenizer.render(_break_special(tokenizer, messages), broken_tools)


def _break_special(tokenizer: Tokenizer, value: Any) -> Any:
    """Breaks up special tokens in the texts of JSON."""
    if isinstance(value, str):
        return tokenizer.break_special(value)
    # Keys too: templates print the definitions of tools as JSON.
    if isinstance(value, Mapping):
        return {
            _break_special(tokenizer, key): _break_special(tokenizer, inner)
            for key, inner in value.items()
        }
    if isinstance(value, Sequence):
        return [_break_special(tokenizer, inner) for inner in value]
    return value
