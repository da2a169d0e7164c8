"""Parameters of an engine that are cast, gathered, or split by layers."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax

from gigpo_jax.engines.jax.placement import Placement, is_sharded
from gigpo_jax.engines.jax.split_placement import SplitPlacement
from gigpo_jax.models import decoder
from gigpo_jax.models.decoder_config import STACKS, DecoderConfig
from gigpo_jax.models.separate_layers import split_layers


def prepare_params(
    config: DecoderConfig,
    placement: Placement,
    params: decoder.Params,
    dtype: Any,
    *,
    run_program: Callable[..., Any],
    localize_leaf: Callable[[Any, jax.Array], jax.Array],
) -> decoder.Params:
    """Casts parameters and moves them to the placement's devices; see `Programs.prepare_params`.

    The last two arguments are methods of `Programs`.
    """
    leaves, tree = jax.tree.flatten(params)
    shardings: Sequence[Any] = [None] * len(leaves)
    split_placement = placement if isinstance(placement, SplitPlacement) else None
    if split_placement:
        shardings = [split_placement.gathered_sharding(leaf) for leaf in leaves]
    # Only leaves that differ are copied: with an adapter nearly all have the right dtype.
    changed_indices = []
    for index, (leaf, sharding) in enumerate(zip(leaves, shardings, strict=True)):
        is_in_place = not sharding or leaf.sharding.is_equivalent_to(sharding, leaf.ndim)
        if leaf.dtype != dtype or not is_in_place:
            changed_indices.append(index)
    if changed_indices:
        changed = [leaves[index] for index in changed_indices]
        gathered = run_program(
            ("hand-over",),
            _cast_function(changed, dtype),
            changed,
            out_shardings=[shardings[index] for index in changed_indices],
        )
        for index, leaf in zip(changed_indices, gathered, strict=True):
            leaves[index] = leaf
    if split_placement:
        leaves = [localize_leaf(split_placement, leaf) for leaf in leaves]
    prepared = jax.tree.unflatten(tree, leaves)
    # After the cast. XLA copies a layer out of its stack for every token. On GPUs layers that
    # the engine shares with the learner stay there: apart they would be a second copy.
    copies = {index for index, leaf in enumerate(leaves) if leaf.ndim > 2} <= {*changed_indices}
    if config.for_cpu or (copies and placement.device.platform == "gpu"):
        split = functools.partial(split_layers, config)
        for stack in prepared.keys() & set(STACKS):
            prepared[stack] = run_program(("layers apart", stack), split, prepared[stack])
    return prepared


def _cast_function(
    leaves: Sequence[jax.Array], dtype: Any
) -> Callable[[Sequence[jax.Array]], list[jax.Array]]:
    """Makes a function that casts parameters like `leaves` before they are gathered."""
    shardings = [leaf.sharding if is_sharded(leaf) else None for leaf in leaves]

    def cast_leaves(leaves: Sequence[jax.Array]) -> list[jax.Array]:
        results = []
        for leaf, sharding in zip(leaves, shardings, strict=True):
            narrow = leaf.astype(dtype)
            if sharding is not None:
                # Pins the cast to the shards: devices then send each other the smaller dtype.
                narrow = jax.lax.with_sharding_constraint(narrow, sharding)
            results.append(narrow)
        return results

    return cast_leaves
