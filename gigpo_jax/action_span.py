"""Which tokens of a response are its action: `<action> .. </action>`, tags included."""

import functools
import re
from collections.abc import Callable, Sequence

import numpy as np

from gigpo_jax.models.tokenizer import Tokenizer


def action_masks(tokenizer: Tokenizer, tags: Sequence[str]) -> Callable[[np.ndarray], np.ndarray]:
    """Builds a function from token ids [R] to [R] bool, True in the first span of one of the tags.

    A token that is partly in the span is in it. A response without such a span has no action token.
    """
    span = re.compile(rf"<({'|'.join(map(re.escape, tags))})>.*?</\1>", re.DOTALL | re.ASCII | re.IGNORECASE)
    # Token by token: tags are ASCII, so a character that is split between tokens does not matter.
    piece = functools.cache(lambda token: tokenizer.decode([token]))

    def mask(tokens: np.ndarray) -> np.ndarray:
        pieces = [piece(token) for token in tokens.tolist()]
        found = span.search("".join(pieces))
        start, end = found.span() if found else (0, 0)
        ends = np.cumsum([len(text) for text in pieces], dtype=np.int64)
        return (ends > start) & (np.concatenate([[0], ends])[:-1] < end) & (np.diff(ends, prepend=0) > 0)

    return mask
