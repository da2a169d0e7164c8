"""Checkpoints for exact resumes, written in the background, whole or not at all.

A checkpoint holds the train state in two parts, `params` and `rest`, a critic's state as
`critic_params` and `critic_rest`, policies of earlier iterations as `older`, and a record: JSON
values such as the iteration and the position in the metrics. Each has a checksum.
"""

import contextlib
import hashlib
import json
import logging
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gigpo_jax.core.errors import InputError, StorageError, first_line, storage_fix
from gigpo_jax.core.files import check_writable
from gigpo_jax.rl.update import TrainState
from gigpo_jax.run.orbax_noise import silence_orbax

# Name of the part with the policies that later rollouts sample from, and of their versions in the
# record.
OLDER = "older"

Restored = tuple[TrainState, dict[str, Any]]

logger = logging.getLogger(__name__)


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

    def save(self, iteration: int, state: TrainState, record: Mapping[str, Any]) -> None:
        """Starts writing a train state, see `save_parts`."""
        self.save_parts(iteration, parts_of(state), record)

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
        items["record"] = args.JsonSave(content | {"checksum": _digest(content)})
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

    def restore(self, like: TrainState, shardings: TrainState | None = None) -> Restored | None:
        """Reads the newest valid checkpoint, and warns of each newer one that is damaged.

        Args:
          like: State of the same shapes: arrays or `jax.ShapeDtypeStruct`s.
          shardings: Shardings of the result, whatever mesh it was saved from; default: the
            shardings of `like`.

        Returns:
          The state and the record, or None if there is no checkpoint.

        Raises:
          InputError: there are checkpoints and none can be read.
        """
        if shardings is not None:
            like = jax.tree.map(
                lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), like, shardings
            )
        restored = self.restore_parts(parts_of(like))
        return None if restored is None else (state_of(restored), restored["record"])

    def restore_parts(self, like: Mapping[str, Any]) -> dict[str, Any] | None:
        """Reads parts of the newest valid checkpoint; see `restore`.

        Args:
          like: Tree with the shapes and shardings of each part, by name.

        Returns:
          The parts, "iteration" and "record", or None if there is no checkpoint.

        Raises:
          InputError: also if a checkpoint was saved without one of the parts.
        """
        # A checkpoint that this process is still writing cannot be read.
        self.wait()
        problem = ""
        iterations = self.iterations()
        for iteration in reversed(iterations):
            try:
                restored = self._read(iteration, like)
            except Exception as err:  # Orbax raises many types for a damaged file
                is_out_of_memory = isinstance(err, MemoryError) or "RESOURCE_EXHAUSTED" in str(err)
                if isinstance(err, InputError) or is_out_of_memory:
                    raise  # the checkpoint may be whole
                problem = first_line(err)
                logger.warning(
                    "checkpoint %d in %s is damaged, not used: %s",
                    iteration,
                    self.directory,
                    problem,
                )
                continue
            if problem:
                logger.warning("using checkpoint %d in %s instead", iteration, self.directory)
            return restored
        if problem:
            raise InputError(
                f"none of its {len(iterations)} checkpoints can be read ({problem})",
                key=self.directory,
                fix="give the model that the run was trained with (config.json beside the folder "
                "has it), or, if that is so, remove the folder",
            )
        return None

    def _read(self, iteration: int, like: Mapping[str, Any]) -> dict[str, Any]:
        """The parts of one checkpoint, "iteration" and "record".

        Raises if a checksum differs.
        """
        # The record first: what does not fit is refused before any array is read.
        args = self._ocp.args
        record = self._manager.restore(iteration, args=args.Composite(record=args.JsonRestore()))
        content = dict(record["record"])
        if content.pop("checksum", None) != _digest(content):
            raise ValueError("the checksum of its record differs")
        if content.get("number", iteration) != iteration:  # files of older versions have none
            raise ValueError(f"its record is that of checkpoint {content['number']}")
        # Not damage: the same version wrote the older checkpoints too, so the search ends here.
        missing_parts = sorted(like.keys() - content["checksums"].keys())
        if missing_parts:
            raise InputError(
                f"checkpoint {iteration} has no {', '.join(missing_parts)}: it is of another "
                "config or another version of gigpo_jax",
                key=self.directory,
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
        trees = self._manager.restore(iteration, args=args.Composite(**shapes))
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
            resume = f"continues from checkpoint {max(numbers)}" if numbers else "starts again"
            code = _system_code(err)
            reason = os.strerror(code) if code else first_line(err)
            raise StorageError(
                f"{self.directory}: a checkpoint cannot be written ({reason}); "
                f"{storage_fix(code)}, then run the same command: it {resume}"
            ) from err

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


def newest_params(directory: str | Path, like: Any, part: str = "params") -> tuple[Any, int]:
    """Reads the newest checkpoint's parameters, for evaluation and export.

    Args:
      directory: Folder `checkpoints/` of a run.
      like: Parameters or their shapes, with the shardings of the result.
      part: Name of the part, "params" or "critic_params".

    Returns:
      The parameters and their iteration; `like` and 0 if there is no checkpoint.

    Raises:
      InputError: there are checkpoints and none can be read.
    """
    restored = _restore_read_only(directory, {part: like})
    return (like, 0) if restored is None else (restored[part], restored["iteration"])


def newest_record(directory: str | Path) -> dict[str, Any]:
    """The record of the newest checkpoint; empty without one.

    Raises as `newest_params`.
    """
    restored = _restore_read_only(directory, {})
    return {} if restored is None else dict(restored["record"])


def _restore_read_only(directory: str | Path, like: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns parts of the newest checkpoint as `restore_parts` does, or None without a folder."""
    if not Path(directory).is_dir():
        return None
    checkpoints = Checkpointer(directory, read_only=True)
    try:
        return checkpoints.restore_parts(like)
    finally:
        checkpoints.close()


def checksum(tree: Any) -> str:
    """Returns a checksum of arrays, the same for every sharding.

    It is computed on the device. It sees every change of one element, and any other change with a
    probability of 1 - 2^-32.
    """
    # One transfer for all sums: a wait for each array would stop the device often.
    sums = jax.device_get(_leaf_sums([x for x in jax.tree.leaves(tree) if np.size(x)]))
    return hashlib.sha256(np.asarray(sums, np.uint32).tobytes()).hexdigest()[:16]


@jax.jit
def _leaf_sums(leaves: list[jax.Array]) -> list[jax.Array]:
    """Sums the bits of each array's elements modulo 2^32, each mixed with its index.

    The mixing is MurmurHash3's finaliser.
    """
    # Integer sums modulo 2^32 are the same in any order, so every sharding gives the same number; a
    # sum of floats would depend on it. 0x9E3779B9 is 2^32 divided by the golden ratio: indices that
    # are neighbours differ in many bits.
    sums = []
    for x in map(jnp.asarray, leaves):
        # bitcast_convert_type takes no bool.
        if x.dtype == bool:
            x = x.astype(jnp.uint8)
        # Bits, not values: NaN, -0.0 and the last digit count.
        mixed = jax.lax.bitcast_convert_type(x, f"uint{8 * x.dtype.itemsize}").astype(jnp.uint32)
        stride = 1
        for axis in reversed(range(x.ndim)):
            # The index of an element in the whole array, axis by axis: a flat iota would need a
            # reshape, which moves data between shards. Products wrap modulo 2^32.
            index = jax.lax.broadcasted_iota(jnp.uint32, x.shape, axis)
            mixed += index * np.uint32(stride * 0x9E3779B9 % 2**32)
            stride *= x.shape[axis]
        mixed = (mixed ^ (mixed >> 16)) * np.uint32(0x85EBCA6B)
        mixed = (mixed ^ (mixed >> 13)) * np.uint32(0xC2B2AE35)
        sums.append((mixed ^ (mixed >> 16)).sum(dtype=jnp.uint32))
    return sums


def _system_code(err: Exception) -> int | None:
    """The operating system's number of an Orbax error, or None."""
    # TensorStore's errors have the system's number only in their text.
    match = re.search(r"\[os_error_code='?(\d+)", str(err))
    return int(match[1]) if match else getattr(err, "errno", None)


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def _abstract(x: Any) -> Any:
    if isinstance(x, jax.Array | jax.ShapeDtypeStruct):
        # The sharding decides which part each host reads, so a checkpoint of another mesh fits as
        # well.
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)
    return jax.ShapeDtypeStruct(np.shape(x), np.asarray(x).dtype)
