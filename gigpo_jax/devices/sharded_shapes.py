"""Shapes of arrays with their shardings, for programs that are only compiled."""

from typing import Any

import jax


def with_shardings(tree: Any, shardings: Any) -> Any:
    """A tree's shapes with the shardings of another tree."""
    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        tree,
        shardings,
    )
