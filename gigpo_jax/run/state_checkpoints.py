"""Checkpoints of a train state alone, as supervised training has them."""

from collections.abc import Mapping
from typing import Any

import jax

from gigpo_jax.rl.train_step import TrainState
from gigpo_jax.run.checkpoint import Checkpointer, parts_of, state_of


def save_state(
    checkpoints: Checkpointer, iteration: int, state: TrainState, record: Mapping[str, Any]
) -> None:
    """Starts writing a train state, see `Checkpointer.save_parts`."""
    checkpoints.save_parts(iteration, parts_of(state), record)


def restore_state(
    checkpoints: Checkpointer, like: TrainState, shardings: TrainState | None = None
) -> tuple[TrainState, dict[str, Any]] | None:
    """Reads the state and the record of the newest valid checkpoint; None if there is none.

    Args:
      checkpoints: Checkpoints of the run.
      like: State of the same shapes: arrays or `jax.ShapeDtypeStruct`s.
      shardings: Shardings of the result, whatever mesh it was saved from; default: the shardings of
        `like`.

    Raises:
      InputError: As `Checkpointer.restore_parts`.
    """
    if shardings is not None:
        like = jax.tree.map(
            lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), like, shardings
        )
    restored = checkpoints.restore_parts(parts_of(like))
    return None if restored is None else (state_of(restored), restored["record"])
