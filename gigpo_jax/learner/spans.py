"""The spans of responses, token by token, such as actions."""

import functools
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from gigpo_jax.models.text.tokenizer import Tokenizer

ActionMask = Callable[[np.ndarray], np.ndarray]  # token ids [R] -> [R] bool
TagPair = tuple[re.Pattern[str], re.Pattern[str]]


def action_masks(tokenizer: Tokenizer, tags: Sequence[str]) -> ActionMask:
    """Builds a function that finds the tokens of an action.

    It maps token ids [R] to [R] bool, True in the first span of one of the tags. A token that is
    partly in the span is in it. A response without such a span has no action token.
    """
    read_tokens = token_reader(tokenizer)
    pairs = tag_pairs(tags)

    def mask(tokens: np.ndarray) -> np.ndarray:
        text = read_tokens(tokens)
        return text.covers(*first_span(text.text, pairs))

    return mask


class TokenText(NamedTuple):
    """The text of R tokens.

    Attributes:
      text: text of all tokens.
      ends: [R] i64, end of each token in the text.
      lengths: [R] i64, length of each token.
    """

    text: str
    ends: np.ndarray
    lengths: np.ndarray

    @property
    def starts(self) -> np.ndarray:
        """Start of each token in the text, [R] i64."""
        return self.ends - self.lengths

    def covers(self, start: int, end: int) -> np.ndarray:
        """Returns whether each token is partly in a span of the text, [R] bool."""
        # A token without text belongs to no span, wherever it stands.
        return (self.ends > start) & (self.starts < end) & (self.lengths > 0)


def token_reader(tokenizer: Tokenizer) -> Callable[[np.ndarray], TokenText]:
    """Builds a function from token ids [R] to their text."""
    # Token by token: tags are ASCII, so a character that is split between tokens does not matter.
    decode_token = functools.cache(lambda token: tokenizer.decode([token]))

    def read_tokens(tokens: np.ndarray) -> TokenText:
        pieces = [decode_token(token) for token in tokens.tolist()]
        lengths = np.array([len(piece) for piece in pieces], np.int64)
        return TokenText("".join(pieces), np.cumsum(lengths), lengths)

    return read_tokens


def tag_pairs(tags: Sequence[str]) -> list[TagPair]:
    """Patterns of opening and closing tags."""
    return [(_tag_pattern(f"<{tag}>"), _tag_pattern(f"</{tag}>")) for tag in tags]


def _tag_pattern(tag: str) -> re.Pattern[str]:
    return re.compile(re.escape(tag), re.ASCII | re.IGNORECASE)


def first_span(
    text: str, pairs: Sequence[TagPair], *, start: int = 0, with_tags: bool = True
) -> tuple[int, int]:
    """Finds the start and end of the first span between two tags, in linear time; (0, 0) if none.

    Args:
      text: text to search.
      pairs: patterns of tags, as from `tag_pairs`.
      start: place in the text where the search begins.
      with_tags: whether the tags are part of the span.
    """
    spans = []
    # Two searches, not one pattern with ".*?": that takes quadratic time on repeated opening tags.
    for opening_tag, closing_tag in pairs:
        opening = opening_tag.search(text, start)
        if opening is None:
            continue
        closing = closing_tag.search(text, opening.end())
        if closing is not None:
            inner = (opening.end(), closing.start())
            spans.append((opening.start(), closing.end()) if with_tags else inner)
    return min(spans, default=(0, 0))
