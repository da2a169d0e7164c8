"""The parts of responses with subgoals, token by token, for HiPER (arXiv 2602.16165)."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from gigpo_jax.learner.spans import first_span, tag_pairs, token_reader
from gigpo_jax.methods.hiper.advantages import RESPONSE_PARTS
from gigpo_jax.methods.hiper.subgoals import read_subgoal
from gigpo_jax.models.text.tokenizer import Tokenizer


class ResponseParts(NamedTuple):
    """The parts of R tokens.

    Attributes:
      parts: [R] i32, numbers of `RESPONSE_PARTS`, -1 for tokens of none. Tags are in none, unless a
        token is in tag and content.
      after_subgoal: index of the first token behind the subgoal, at most R - 1.
    """

    parts: np.ndarray
    after_subgoal: int


PartReader = Callable[[np.ndarray], ResponseParts]  # token ids [R] -> their parts


def part_reader(tokenizer: Tokenizer, tags: Sequence[str]) -> PartReader:
    """Builds a function that finds the parts of a response.

    Args:
      tokenizer: tokenizer of the policy.
      tags: tags that actions stand in.
    """
    read_tokens = token_reader(tokenizer)
    pairs = tag_pairs(tags)

    def read_parts(tokens: np.ndarray) -> ResponseParts:
        text = read_tokens(tokens)
        response = read_subgoal(text.text)
        spans = {
            "action": first_span(text.text, pairs, start=response.subgoal_end, with_tags=False),
            "subgoal": response.subgoal_span,
            "switch": response.decision_span,
        }
        parts = np.full(len(tokens), -1, np.int32)
        for number, name in enumerate(RESPONSE_PARTS):
            span = spans[name]
            if span is not None:
                parts[text.covers(*span)] = number
        behind = int(np.sum(text.starts < response.subgoal_end))
        return ResponseParts(parts, min(behind, max(len(tokens) - 1, 0)))

    return read_parts
