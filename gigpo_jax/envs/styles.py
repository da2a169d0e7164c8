"""Templates of prompts that an environment's entry does not name."""

from collections.abc import Mapping
from typing import cast

from gigpo_jax.core.errors import InputError
from gigpo_jax.core.references import load_reference
from gigpo_jax.env_bridge.conversations import make_conversation
from gigpo_jax.env_bridge.prompts import CHAT, PromptTemplate


def find_other_style(name: str, style: str, styles: Mapping[str, PromptTemplate]) -> PromptTemplate:
    """Finds a template that is none of an entry's styles; see `registry.find_style`."""
    if not isinstance(style, str):
        raise InputError("must be of type str", key="config.env.prompt", value=repr(style))
    # Names of styles have no colon, so the two cannot be confused.
    if ":" in style:
        template = load_reference(style, key="config.env.prompt")
        if not callable(template):
            raise InputError(
                f"a {type(template).__name__}, not a function",
                key="config.env.prompt",
                value=repr(style),
                fix="name one from PromptInput to text",
            )
        return cast(PromptTemplate, template)
    # "chat" is the conversation of "full", "chat_tagged" the conversation of "tagged".
    prefix, _, base = style.partition("_")
    base = base or "full"
    if prefix != CHAT or base not in styles:
        # Some environments have words of their own for conversations: their styles have the name.
        choices = ", ".join(sorted({*styles, CHAT}))
        raise InputError(
            f"no such style of {name}",
            key="config.env.prompt",
            value=repr(style),
            fix=f"choose one of {choices}, {CHAT}_STYLE, or name module:NAME",
        )
    return make_conversation(styles[base])
