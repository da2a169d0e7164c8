"""Reads the newest valid checkpoint of a folder."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from gigpo_jax.core.errors import InputError, first_line
from gigpo_jax.run.checksums import checksum, digest

logger = logging.getLogger(__name__)


def restore_newest(
    manager: Any, directory: Path, iterations: Sequence[int], like: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Reads parts of the newest valid checkpoint; see `Checkpointer.restore_parts`.

    Args:
      manager: Orbax's manager of the folder.
      directory: Folder of the checkpoints.
      iterations: Numbers of the complete checkpoints, oldest first.
      like: Tree with the shapes and shardings of each part, by name.
    """
    problem = ""
    for iteration in reversed(iterations):
        try:
            restored = read_checkpoint(manager, directory, iteration, like)
        except Exception as err:  # Orbax raises many types for a damaged file
            is_out_of_memory = isinstance(err, MemoryError) or "RESOURCE_EXHAUSTED" in str(err)
            if isinstance(err, InputError) or is_out_of_memory:
                raise  # the checkpoint may be whole
            problem = first_line(err)
            logger.warning(
                "checkpoint %d in %s is damaged, not used: %s",
                iteration,
                directory,
                problem,
            )
            continue
        if problem:
            logger.warning("using checkpoint %d in %s instead", iteration, directory)
        return restored
    if problem:
        raise InputError(
            f"none of its {len(iterations)} checkpoints can be read ({problem})",
            key=directory,
            fix="give the model that the run was trained with (config.json beside the folder "
            "has it), or, if that is so, remove the folder",
        )
    return None


def read_checkpoint(
    manager: Any, directory: Path, iteration: int, like: Mapping[str, Any]
) -> dict[str, Any]:
    """The parts of one checkpoint, "iteration" and "record".

    Raises if a checksum differs.
    """
    # The record first: what does not fit is refused before any array is read.
    args = ocp.args
    record = manager.restore(iteration, args=args.Composite(record=args.JsonRestore()))
    content = dict(record["record"])
    if content.pop("checksum", None) != digest(content):
        raise ValueError("the checksum of its record differs")
    if content.get("number", iteration) != iteration:  # files of older versions have none
        raise ValueError(f"its record is that of checkpoint {content['number']}")
    # Not damage: the same version wrote the older checkpoints too, so the search ends here.
    missing_parts = sorted(like.keys() - content["checksums"].keys())
    if missing_parts:
        raise InputError(
            f"checkpoint {iteration} has no {', '.join(missing_parts)}: it is of another "
            "config or another version of gigpo_jax",
            key=directory,
            fix="give the config of the run (config.json beside the folder has it); or write "
            "its model with that config and `gigpo export`, and train that (model.path) in "
            "another --workdir",
        )
    result: dict[str, Any] = {"iteration": iteration, "record": content["record"]}
    if not like:
        return result
    shapes = {
        name: args.StandardRestore(jax.tree.map(_abstract, tree)) for name, tree in like.items()
    }
    trees = manager.restore(iteration, args=args.Composite(**shapes))
    for name in like:
        # Computed from the arrays in memory, not from files: it covers the reader and the copy
        # to the devices as well.
        if checksum(trees[name]) != content["checksums"][name]:
            raise ValueError(f"the checksum of its {name} differs")
    for name in like:
        # A copy: a restored array may share memory with a read buffer, and updates take over
        # the state.
        result[name] = jax.tree.map(jnp.copy, trees[name])
    return result


def _abstract(x: Any) -> Any:
    if isinstance(x, jax.Array | jax.ShapeDtypeStruct):
        # The sharding decides which part each host reads, so a checkpoint of another mesh fits as
        # well.
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)
    return jax.ShapeDtypeStruct(np.shape(x), np.asarray(x).dtype)
