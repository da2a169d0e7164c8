"""Finds the token that completes a stop string."""

from collections.abc import Sequence

from gigpo_jax.models.text.tokenizer import Tokenizer


class StopStrings:
    """Finds stop strings in responses."""

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        self._single_tokens: dict[str, int | None] = {}

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

        def is_in(first: int, end: int) -> bool:
            # A window, because decoding the whole response at every token takes quadratic time.
            return stop in self._tokenizer.decode(list(tokens[max(0, first - window) : end]))

        # One look at all new tokens, which have no stop string in most cases.
        if not is_in(start + 1, len(tokens)):
            return None
        ends = range(start + 1, len(tokens) + 1)
        return next((end - 1 for end in ends if is_in(end, end)), None)
