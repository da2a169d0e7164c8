"""Joins texts that begin alike to trees, for `batch.share_prefixes`."""

import itertools
from collections.abc import Sequence

import numpy as np

from gigpo_jax.learner.samples import Text
from gigpo_jax.learner.trees import Tree


def count_distinct_tokens(texts: Sequence[Text]) -> int:
    """Tokens of texts, each shared prefix once."""
    ordered = [texts[index] for index in order_texts(texts)]
    return Tree(ordered, _shared_lengths(ordered)).length


def grow_trees(texts: Sequence[Text], longest: int, responses: int) -> list[Tree]:
    """Joins texts that begin alike.

    Args:
      texts: texts in any order.
      longest: largest number of tokens of a tree; a longer text is a tree of its own.
      responses: largest number of tokens of a tree that carry loss.
    """
    ordered = [texts[index] for index in order_texts(texts)]
    trees: list[Tree] = []
    tokens = 0  # of the newest tree
    losses = 0
    for text, shared in zip(ordered, _shared_lengths(ordered), strict=True):
        length = text[-1].length
        loss = sum(len(sample.response_tokens) for sample in text)
        fits = tokens + length - shared <= longest and losses + loss <= responses
        if shared and fits:
            trees[-1].texts.append(text)
            trees[-1].shared.append(shared)
            tokens += length - shared
            losses += loss
        else:
            trees.append(Tree([text], [0]))
            tokens = length
            losses = loss
    return trees


def _shared_lengths(ordered: Sequence[Text]) -> list[int]:
    """Common first tokens of neighbours, 0 for the first text."""
    inputs = [text[-1].input_tokens for text in ordered]
    lengths = [0] if inputs else []
    for earlier, tokens in itertools.pairwise(inputs):
        size = min(len(earlier), len(tokens))
        differs = np.append(earlier[:size] != tokens[:size], True)
        lengths.append(int(differs.argmax()))
    return lengths


def order_texts(texts: Sequence[Text]) -> list[int]:
    """Indices of texts in the order of their tokens."""
    # The order of bytes is that of numbers if the highest byte comes first.
    keys = [text[-1].input_tokens.astype(">u4").tobytes() for text in texts]
    return sorted(range(len(texts)), key=keys.__getitem__)
