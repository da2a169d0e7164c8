"""Texts that begin alike, as trees: what they share is computed once.

A tree stands in a row in the order of a walk from its root: a text is a path, and the descendants
of a token lie directly behind it. So a token sees the earlier ones whose descendants have not
ended, and one number a token tells where they end (`models.attention`). A model is causal: hidden
states are the same as for separate texts.
"""

from typing import NamedTuple

import numpy as np

from gigpo_jax.learner.rows import Segment
from gigpo_jax.learner.samples import Text


class Tree(NamedTuple):
    """Texts that stand together in a row.

    Attributes:
      texts: texts in the order of their tokens.
      shared: number of first tokens that each text has in common with the text before it; the
        first text has none.
    """

    texts: list[Text]
    shared: list[int]

    @property
    def length(self) -> int:
        """Tokens of the model's input."""
        return sum(text[-1].length for text in self.texts) - sum(self.shared)

    def as_segment(self) -> Segment:
        """The texts with the places of their tokens."""
        end = 0
        placed_texts = []
        places = np.zeros(0, np.int64)
        for text, shared in zip(self.texts, self.shared, strict=True):
            start = end
            end += text[-1].length - shared
            places = np.concatenate([places[:shared], np.arange(start, end)])
            placed_texts.append((text, places))
        return Segment(placed_texts, self.length)
