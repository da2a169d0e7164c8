"""Finds the token that completes a stop string."""

from collections.abc import Sequence

import numpy as np

from gigpo_jax.models.tokenizer import Tokenizer


class StopStrings:
    """Finds stop strings in responses; caches facts about the vocabulary."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int):
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._single: dict[str, int | None] = {}
        self._can_end: dict[str, np.ndarray] = {}

    def single_token(self, stop: str) -> int | None:
        """The id of the token that is exactly this string, if there is one."""
        if stop not in self._single:
            ids = list(self._tokenizer.encode(stop))
            found = len(ids) == 1 and self._tokenizer.decode(ids) == stop
            self._single[stop] = ids[0] if found else None
        return self._single[stop]

    def completed_at(self, tokens: Sequence[int], start: int, stops: tuple[str, ...]) -> int | None:
        """The index of the first token, from `start` on, that completes a stop string in the text of `tokens` [T].

        No stop string may be complete before `start`.
        """
        found = [at for stop in stops if (at := self._find(tokens, start, stop)) is not None]
        return min(found, default=None)

    def _find(self, tokens: Sequence[int], start: int, stop: str) -> int | None:
        for index in range(start, len(tokens)):
            if not self._may_end(tokens[index], stop):
                continue
            # n bytes need at most n tokens with text; the rest allows for tokens without text.
            first = max(0, index + 1 - 2 * len(stop.encode()) - 8)
            if stop in self._tokenizer.decode(list(tokens[first : index + 1])):
                return index
        return None

    def _may_end(self, token: int, stop: str) -> bool:
        """Whether the token's text has the last character of the stop string; exact for ASCII, else True."""
        if not stop[-1].isascii() or stop[-1].isspace():
            return True
        known = self._can_end.setdefault(stop[-1], np.full(self._vocab_size, -1, np.int8))
        if known[token] < 0:
            known[token] = stop[-1] in self._tokenizer.decode([token])
        return bool(known[token])
