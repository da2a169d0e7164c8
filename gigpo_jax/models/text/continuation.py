"""Token ids between two responses of a conversation: sampled tokens are never encoded again."""

import re
from collections.abc import Sequence

from gigpo_jax.core.errors import InputError
from gigpo_jax.models.text.tokenizer import RESPONSE_PLACE, Tokenizer


def continue_response(tokenizer: Tokenizer, text: str) -> str:
    """Returns the part of a whole response that is written behind `Tokenizer.opened_text`."""
    letters = "".join(tokenizer.opened_text.split())
    if not letters:
        return text
    # Spaces between tags do not count: templates put line breaks there.
    opened = re.match(r"\s*".join(map(re.escape, letters)) + r"\s*", text)
    return text[opened.end() :] if opened else text


def end_text(tokenizer: Tokenizer, response: Sequence[int]) -> str:
    """Returns the stop token that ends a response, spelled, or "" if none ends it.

    A response may also end at its limit of tokens or with a stop string.
    """
    if len(response) and response[-1] in tokenizer.stop_token_ids:
        return tokenizer.token(int(response[-1])) or ""
    return ""


def encode_behind(tokenizer: Tokenizer, tokens: Sequence[int], text: str) -> list[int]:
    """Returns the ids of `text` behind tokens that have been sampled.

    SentencePiece tokenizers write a space before a text, but not before a piece of one.
    """
    # The token that ended a response, or any text that merges with nothing.
    before = end_text(tokenizer, tokens) or "\n"
    start = tokenizer.encode(before)
    ids = tokenizer.encode(before + text)
    return ids[len(start) :] if ids[: len(start)] == start else tokenizer.encode(text)


def encode_continuation(
    tokenizer: Tokenizer,
    user_text: str,
    response: Sequence[int],
    *,
    mark: str = "",
    special: str = "",
) -> list[int]:
    """Returns the ids between two responses.

    They are what the chat template writes after a response: the end of its turn unless the
    response has it, the next user message, and the generation prompt. `prompt + response +
    continuation` is then the next prompt, and no sampled token is encoded again.

    Args:
      tokenizer: tokenizer of the model.
      user_text: next user message, as in `Tokenizer.encode_chat`.
      response: ids of the response as they were sampled.
      mark: text that stands for a special token, as in `Tokenizer.encode_chat`.
      special: special token of an image, as in `Tokenizer.encode_chat`.

    Raises:
      InputError: as `Tokenizer.encode_chat`, or the template leaves responses out.
    """
    messages = [
        {"role": "user", "content": "text"},
        {"role": "assistant", "content": RESPONSE_PLACE},
        {"role": "user", "content": tokenizer.break_text(user_text, mark, special)},
    ]
    text = tokenizer.render(messages)
    _, place, rest = text.partition(RESPONSE_PLACE)
    if not place:
        raise InputError(
            "the chat template leaves earlier responses out",
            key=tokenizer.source,
            fix="use prompts of single steps, such as config.env.prompt=full",
        )
    # The response has its own end; a second one would be a turn without words.
    end = end_text(tokenizer, response)
    closed = rest.lstrip()
    if end and closed.startswith(end):
        rest = closed.removeprefix(end)
    return encode_behind(tokenizer, response, rest)
