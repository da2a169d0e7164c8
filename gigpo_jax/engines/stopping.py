"""Finds the token that completes a stop string."""

from collections.abc import Sequence

import numpy as np

from gigpo_jax.models.text.tokenizer import Tokenizer


class StopStrings:
    """Finds stop strings in responses; caches facts about the vocabulary."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int):
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._single_tokens: dict[str, int | None] = {}
        # last character -> [V] i8: 1 if the token's text has it, 0 if not, -1 if not yet known
        self._token_has_character: dict[str, np.ndarray] = {}

    def single_token(self, stop: str) -> int | None:
        """Returns the id of the single token that is exactly this string, or None."""
        if stop not in self._single_tokens:
            # An encoder may normalise the text: the token counts only if its own text is the
            # string.
            ids = list(self._tokenizer.encode(stop))
            is_single = len(ids) == 1 and self._tokenizer.decode(ids) == stop
            self._single_tokens[stop] = ids[0] if is_single else None
        return self._single_tokens[stop]

    def find_completion(
        self, tokens: Sequence[int], start: int, stops: tuple[str, ...]
    ) -> int | None:
        """Returns the index of the first token that completes a stop string, or None.

        No stop string may be complete before `start`, the first token to examine.
        """
        # Only the decoded text counts: a stop string may be cut into tokens in many ways.
        completions = [self._find_stop(tokens, start, stop) for stop in stops]
        return min((index for index in completions if index is not None), default=None)

    def _find_stop(self, tokens: Sequence[int], start: int, stop: str) -> int | None:
        # n bytes need at most n tokens with text; the rest allows for tokens without text.
        window = 2 * len(stop.encode()) + 8
        for index in range(start, len(tokens)):
            if not self._can_complete(tokens[index], stop):
                continue
            first = max(0, index + 1 - window)
            # A window, because decoding the whole response at every token takes quadratic time.
            if stop in self._tokenizer.decode(list(tokens[first : index + 1])):
                return index
        return None

    def _can_complete(self, token: int, stop: str) -> bool:
        """Returns whether a token's text has the last character of the stop string.

        Only then may the token complete it. For characters beyond ASCII it is always true: a token
        may be a part of a character.
        """
        character = stop[-1]
        # White space may come from joining two tokens, and then it is in the text of neither.
        if not character.isascii() or character.isspace():
            return True
        if character not in self._token_has_character:
            self._token_has_character[character] = np.full(self._vocab_size, -1, np.int8)
        has_character = self._token_has_character[character]
        if has_character[token] < 0:
            has_character[token] = character in self._tokenizer.decode([token])
        return bool(has_character[token])
