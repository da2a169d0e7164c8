"""The tokens of each response that are its action, such as `<action>go north</action>`."""

import functools
import re
from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any, Self

import jax
import numpy as np
from ml_collections import ConfigDict

from gigpo_jax.learner.objective import action_tags
from gigpo_jax.learner.signals.base import CreditedSteps, Signal
from gigpo_jax.models.text.tokenizer import Tokenizer
from gigpo_jax.policy import Policy

ActionMask = Callable[[np.ndarray], np.ndarray]  # token ids [R] -> [R] bool
TagPair = tuple[re.Pattern[str], re.Pattern[str]]


class ActionSpans(Signal):
    """Masks of action tokens.

    Attributes:
      mask: function from token ids [R] to [R] bool, True in the action.
    """

    batch_fields = MappingProxyType({"action_mask": np.bool_})

    def __init__(self, mask: ActionMask) -> None:
        """Takes a function as from `action_masks`."""
        self.mask = mask

    @classmethod
    def start(cls, config: ConfigDict, policy: Policy, mesh: jax.sharding.Mesh) -> Self:
        """Looks for the action tags of the config's environments."""
        del mesh
        return cls(action_masks(policy.tokenizer, action_tags(config)))

    def compute_fields(self, credited: CreditedSteps) -> dict[str, Sequence[Any]]:
        """One mask a step, [R] bool."""
        samples = credited.scored.samples
        return {"action_mask": [self.mask(sample.response_tokens) for sample in samples]}


def action_masks(tokenizer: Tokenizer, tags: Sequence[str]) -> ActionMask:
    """Builds a function that finds the tokens of an action.

    It maps token ids [R] to [R] bool, True in the first span of one of the tags. A token that is
    partly in the span is in it. A response without such a span has no action token.
    """
    pairs = [(_tag_pattern(f"<{tag}>"), _tag_pattern(f"</{tag}>")) for tag in tags]
    # Token by token: tags are ASCII, so a character that is split between tokens does not matter.
    decode_token = functools.cache(lambda token: tokenizer.decode([token]))

    def mask(tokens: np.ndarray) -> np.ndarray:
        pieces = [decode_token(token) for token in tokens.tolist()]
        span_start, span_end = _first_span("".join(pieces), pairs)
        lengths = np.array([len(piece) for piece in pieces], np.int64)
        ends = np.cumsum(lengths)
        starts = ends - lengths
        # A token without text belongs to no span, wherever it stands.
        return (ends > span_start) & (starts < span_end) & (lengths > 0)

    return mask


def _tag_pattern(tag: str) -> re.Pattern[str]:
    return re.compile(re.escape(tag), re.ASCII | re.IGNORECASE)


def _first_span(text: str, pairs: Sequence[TagPair]) -> tuple[int, int]:
    """Start and end of the first span between two tags.

    It takes linear time and gives (0, 0) without a span.
    """
    spans = []
    # Two searches, not one pattern with ".*?": that takes quadratic time on repeated opening tags.
    for opening_tag, closing_tag in pairs:
        opening = opening_tag.search(text)
        if opening is None:
            continue
        closing = closing_tag.search(text, opening.end())
        if closing is not None:
            spans.append((opening.start(), closing.end()))
    return min(spans, default=(0, 0))
