"""Checkpoints for exact resumes, written in the background, whole or not at all.

A checkpoint holds the train state in two parts, `params` and `rest`, a critic's state as
`critic_params` and `critic_rest`, policies of earlier iterations as `older`, and a record: JSON
values such as the iteration and the position in the metrics. Each has a checksum.
"""

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from gigpo_jax.core.errors import InputError
from gigpo_jax.core.files import check_writable
from gigpo_jax.rl.train_step import TrainState
from gigpo_jax.run.checksums import checksum, digest
from gigpo_jax.run.orbax_noise import silence_orbax

# Name of the part with the policies that later rollouts sample from, and of their versions in the
# record.
OLDER = "older"


class Checkpointer:
    """Checkpoints of one folder, of which the newest `keep` stay.

    Each host makes one over the same shared folder, and all hosts call the same methods in the same
    order.
    """

    def __init__(self, directory: str | Path, *, keep: int = 2, read_only: bool = False) -> None:
        """Opens a folder.

        Args:
          directory: Folder, made if needed; partial checkpoints of a killed run are removed.
          keep: Number of checkpoints that stay.
          read_only: Whether the folder must not change, because a run may be writing to it.

        Raises:
          InputError: the folder cannot be written.
        """
        import orbax.checkpoint as ocp  # takes a second

        silence_orbax()
        self._ocp = ocp
        self.directory = Path(directory).absolute()
        # No clean-up either: a partial checkpoint here may be one that the run is writing.
        if read_only:
            options = ocp.CheckpointManagerOptions(read_only=True)
        else:
            check_writable(self.directory, "--workdir")
            self.directory.mkdir(parents=True, exist_ok=True)
            self._check_links()
            # Folders at once: when one cannot be made in the background, the threads that need it
            # wait for 20 minutes.
            async_options = ocp.AsyncOptions(create_directories_asynchronously=False)
            options = ocp.CheckpointManagerOptions(
                max_to_keep=keep, cleanup_tmp_directories=True, async_options=async_options
            )
        # Not `all_steps`: checkpoints of an earlier process may be damaged, and are replaced.
        self._written: set[int] = set()
        self._manager = ocp.CheckpointManager(self.directory, options=options)

    def iterations(self) -> list[int]:
        """The iterations of all complete checkpoints, oldest first."""
        return sorted(self._manager.all_steps())

    def save_parts(
        self, iteration: int, parts: Mapping[str, Any], record: Mapping[str, Any]
    ) -> None:
        """Starts writing a checkpoint, unless this object wrote it already.

        The arrays may be donated once this returns. A damaged checkpoint of the same number is
        replaced.

        Args:
          iteration: Number of the checkpoint.
          parts: Trees of arrays by name, as from `parts_of`.
          record: Plain JSON values.

        Raises:
          StorageError: this checkpoint or the previous one cannot be written.
        """
        if iteration in self._written:
            return
        trees, checksums = _prepare_parts(parts)
        args = self._ocp.args
        # To JSON and back: a value that JSON cannot hold fails here, not in the background.
        content = json.loads(
            json.dumps({"number": iteration, "record": record, "checksums": checksums})
        )
        items = {name: args.StandardSave(tree) for name, tree in trees.items()}
        # The record has the checksums of the arrays and its own, so that a flipped bit in either is
        # seen.
        items["record"] = args.JsonSave(content | {"checksum": digest(content)})
        with self._storage_errors():
            if iteration in self._manager.all_steps():
                self._manager.delete(iteration)
            # force: Orbax would otherwise leave out iterations by rules of its own.
            self._manager.save(iteration, args=args.Composite(**items), force=True)
        # The write continues in the background. Orbax gives the folder its name when it is
        # complete: a run that is killed leaves none with this number.
        self._written.add(iteration)

    def compile_programs(self, parts: Mapping[str, Any]) -> None:
        """Compiles what a save computes, so that the first save does not stop a run for it."""
        _prepare_parts(parts)

    def restore_parts(self, like: Mapping[str, Any]) -> dict[str, Any] | None:
        """Reads parts of the newest valid checkpoint, and warns of each newer one that is damaged.

        Args:
          like: Tree with the shapes and shardings of each part, by name.

        Returns:
          The parts, "iteration" and "record", or None if there is no checkpoint.

        Raises:
          InputError: there are checkpoints and none can be read, or one of the parts was not saved.
        """
        # A checkpoint that this process is still writing cannot be read.
        self.wait()
        iterations = self.iterations()
        if not iterations:
            return None
        # Most runs begin; what reads checkpoints is for those that continue.
        from gigpo_jax.run.restore import restore_newest

        return restore_newest(self._manager, self.directory, iterations, like)

    def wait(self) -> None:
        """Returns when all checkpoints are complete.

        Raises:
          StorageError: one cannot be written.
        """
        with self._storage_errors():
            self._manager.wait_until_finished()

    def close(self) -> None:
        """Waits for all checkpoints and ends threads; raises as `wait`."""
        with self._storage_errors():
            self._manager.close()

    @contextlib.contextmanager
    def _storage_errors(self) -> Iterator[None]:
        """Turns every error of Orbax into a `StorageError`."""
        try:
            yield
        except Exception as err:
            # Read from the folder, not from Orbax, whose state is unknown after an error.
            numbers = [int(path.name) for path in self._checkpoint_folders()]
            from gigpo_jax.run.checkpoint_errors import storage_error

            raise storage_error(self.directory, numbers, err) from err

    def _checkpoint_folders(self) -> list[Path]:
        """The complete checkpoints; none if a user deleted the folder."""
        return [path for path in self.directory.glob("*") if path.name.isdecimal()]

    def _check_links(self) -> None:
        """Refuses links among the checkpoints: Orbax would write through or fail to delete them."""
        for path in self._checkpoint_folders():
            if path.is_symlink():
                raise InputError(
                    "a link; checkpoints are folders",
                    key=str(path),
                    fix="replace it by a copy of the folder, or remove it",
                )


def _prepare_parts(parts: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """The parts as they are written, and their checksums."""
    trees = dict(parts)
    if jax.default_backend() == "cpu":
        # Orbax gets views of device memory there, and the next update writes into it.
        trees = jax.tree.map(jnp.copy, trees)
    return trees, {name: checksum(tree) for name, tree in trees.items()}


def parts_of(state: TrainState, prefix: str = "") -> dict[str, Any]:
    """A train state as the parts of a checkpoint."""
    return {f"{prefix}params": state.params, f"{prefix}rest": replace(state, params=None)}


def state_of(parts: Mapping[str, Any], prefix: str = "") -> TrainState:
    """The train state of parts from `parts_of`."""
    return replace(parts[f"{prefix}rest"], params=parts[f"{prefix}params"])
