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
    pairs = [[re.compile(re.escape(x), re.ASCII | re.IGNORECASE) for x in (f"<{tag}>", f"</{tag}>")] for tag in tags]
    # Token by token: tags are ASCII, so a character that is split between tokens does not matter.
    piece = functools.cache(lambda token: tokenizer.decode([token]))

    def mask(tokens: np.ndarray) -> np.ndarray:
        pieces = [piece(token) for token in tokens.tolist()]
        start, end = _first_span("".join(pieces), pairs)
        ends = np.cumsum([len(text) for text in pieces], dtype=np.int64)
        return (ends > start) & (np.concatenate([[0], ends])[:-1] < end) & (np.diff(ends, prepend=0) > 0)

    return mask


def _first_span(text: str, pairs: Sequence[Sequence[re.Pattern[str]]]) -> tuple[int, int]:
    """Where the first span of one of the pairs of tags begins and ends, in linear time; (0, 0) if there is none."""
    spans = []
    for opening, closing in pairs:
        first = opening.search(text)
        last = first and closing.search(text, first.end())
        if first and last:
            spans.append((first.start(), last.end()))
    return min(spans, default=(0, 0))
