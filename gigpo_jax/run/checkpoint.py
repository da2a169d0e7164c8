"""Checkpoints: everything an exact resume needs, written in the background, whole or not at all.

A checkpoint holds the train state (arrays, each host and device writing its part) and a record: plain JSON with the
iteration, the task cursor, seeds and metric positions. Orbax is imported where it is used: it takes a second.
"""

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gigpo_jax.errors import InputError
from gigpo_jax.rl.update import TrainState

Restored = tuple[TrainState, dict[str, Any]]

logger = logging.getLogger(__name__)


class Checkpointer:
    """Saves and restores the checkpoints of one folder; the newest `keep` stay.

    Several hosts make one each, over the same shared folder, and call the same methods in the same order.
    """

    def __init__(self, directory: str | Path, *, keep: int | None = 2) -> None:
        """Opens a folder.

        Args:
          directory: made if it is not there; what a killed run left half-written is removed.
          keep: how many checkpoints stay; None: all.

        Raises:
          InputError: the folder cannot be made or written to.
        """
        import orbax.checkpoint as ocp

        self._ocp = ocp
        self.directory = Path(directory).absolute()
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as err:
            raise InputError(
                f"{self.directory}: cannot make this folder ({err.strerror}); choose another --workdir"
            ) from err
        if not os.access(self.directory, os.W_OK):
            raise InputError(f"{self.directory}: not writable; choose another --workdir")
        options = ocp.CheckpointManagerOptions(max_to_keep=keep, cleanup_tmp_directories=True)
        self._written: set[int] = set()
        self._manager = ocp.CheckpointManager(self.directory, options=options)

    def iterations(self) -> list[int]:
        """The iterations of all complete checkpoints, oldest first."""
        return sorted(self._manager.all_steps())

    def save(self, iteration: int, state: TrainState, record: Mapping[str, Any]) -> None:
        """Starts writing a checkpoint, unless this object has written that iteration.

        The state may be donated as soon as this returns. A checkpoint of the same number from an earlier run (one that
        could not be read) is replaced.

        Args:
          iteration: its number.
          state: the train state.
          record: what JSON can hold.
        """
        if iteration in self._written:
            return
        if iteration in self._manager.all_steps():
            self._manager.delete(iteration)
        if jax.default_backend() == "cpu":
            # Host arrays are views of device memory there, and the next update writes into it.
            state = jax.tree.map(jnp.copy, state)
        args = self._ocp.args
        items = {
            "params": args.StandardSave(state.params),
            "rest": args.StandardSave(replace(state, params=None)),
            # Through JSON now, so that a value it cannot hold fails here and not in the background.
            "record": args.JsonSave(json.loads(json.dumps(record))),
        }
        self._manager.save(iteration, args=args.Composite(**items), force=True)
        self._written.add(iteration)

    def restore(self, like: TrainState, shardings: TrainState | None = None) -> Restored | None:
        """Reads the newest checkpoint that can be read; others are passed over with a warning.

        Args:
          like: a state of the same shapes: arrays or `jax.ShapeDtypeStruct`s.
          shardings: where its leaves shall live, whatever mesh they were saved from; default: as in `like`.

        Returns:
          The state and the record, or None if there is no checkpoint.

        Raises:
          InputError: there are checkpoints and none can be read.
        """
        if shardings is not None:
            like = jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), like, shardings)
        found = self.restore_items({"params": like.params, "rest": replace(like, params=None)}, record=True)
        if found is None:
            return None
        items = found[1]
        return replace(items["rest"], params=items["params"]), items["record"]

    def restore_items(self, like: Mapping[str, Any], *, record: bool = False) -> tuple[int, dict[str, Any]] | None:
        """Reads parts of the newest checkpoint that can be read; see `restore`.

        Args:
          like: part ("params" or "rest") -> a tree that says its shapes and shardings.
          record: whether to read the record too, under "record".

        Returns:
          The iteration and the parts, or None if there is no checkpoint.
        """
        self.wait()
        args, problems = self._ocp.args, []
        wanted = {name: args.StandardRestore(jax.tree.map(_abstract, tree)) for name, tree in like.items()}
        wanted |= {"record": args.JsonRestore()} if record else {}
        for iteration in reversed(self.iterations()):
            try:
                got = self._manager.restore(iteration, args=args.Composite(**wanted))
            except Exception as err:  # the storage layers below raise many types for a damaged file
                problem = f"{type(err).__name__}: {(str(err).splitlines() or [''])[0][:200]}"
                logger.warning(
                    "checkpoint %d in %s cannot be read, passed over: %s", iteration, self.directory, problem
                )
                problems.append(problem)
                continue
            # A copy: a restored array may share memory with a read buffer, and updates take over the state.
            return iteration, {name: jax.tree.map(jnp.copy, got[name]) for name in like} | (
                {"record": dict(got["record"])} if record else {}
            )
        if problems:
            raise InputError(
                f"{self.directory}: none of its {len(problems)} checkpoints can be read ({problems[0]}); remove the "
                "folder or choose another --workdir"
            )
        return None

    def wait(self) -> None:
        """Returns when all checkpoints are complete; raises what went wrong in the background."""
        self._manager.wait_until_finished()

    def close(self) -> None:
        """Completes what is being written and frees the threads."""
        self._manager.wait_until_finished()
        self._manager.close()


def newest_params(directory: str | Path, like: Any) -> tuple[Any, int]:
    """Reads the parameters alone of the newest checkpoint, for evaluation and export.

    Args:
      directory: a run's `checkpoints/`.
      like: the parameters or their shapes, with the shardings that the result shall have; the result if there is no
        checkpoint.

    Returns:
      The parameters, and the iteration they are of; 0 if there is no checkpoint.

    Raises:
      InputError: there are checkpoints and none can be read.
    """
    if not Path(directory).is_dir():
        return like, 0
    checkpoints = Checkpointer(directory, keep=None)
    try:
        found = checkpoints.restore_items({"params": like})
    finally:
        checkpoints.close()
    return (like, 0) if found is None else (found[1]["params"], found[0])


def _abstract(x: Any) -> Any:
    if isinstance(x, jax.Array | jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)
    return jax.ShapeDtypeStruct(np.shape(x), np.asarray(x).dtype)
