"""Checkpoints for exact resumes, written in the background, whole or not at all.

A checkpoint holds the train state in two parts, `params` and `rest`, that of a critic as `critic_params` and
`critic_rest`, policies of earlier iterations as `older`, and a record: JSON with the iteration and what else a resumed
run must know. Each has a checksum. Orbax is imported where it is used: the import takes a second.
"""

import contextlib
import hashlib
import json
import logging
import os
import re
import sys
import traceback
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gigpo_jax.errors import InputError, StorageError
from gigpo_jax.rl.update import TrainState
from gigpo_jax.run.workdir import check_writable

OLDER = "older"  # the part with the policies that later rollouts sample from; in the record: their versions

Restored = tuple[TrainState, dict[str, Any]]

logger = logging.getLogger(__name__)


# When reads or writes fail, Orbax raises the first error, and that one is told here. It also logs each of them with a
# traceback. And it closes its event loop at the first one: the other reads and writes end with errors about the loop.
def _of_orbax(text: str, trace: TracebackType | None) -> bool:
    paths = [frame.filename for frame in traceback.extract_tb(trace)]
    return any(part in " ".join([text, *paths]) for part in ("/orbax/", "tensorstore", "os_error_code="))


def _not_of_orbax(record: logging.LogRecord) -> bool:
    return not _of_orbax(f"{record.pathname} {record.getMessage()}", record.exc_info[2] if record.exc_info else None)


def _quiet_hook(unraisable: "sys.UnraisableHookArgs") -> None:
    closed = str(unraisable.exc_value) == "Event loop is closed"
    if not (closed or _of_orbax("", unraisable.exc_traceback)):
        _usual_hook(unraisable)


for _name in ("absl", "asyncio"):
    logging.getLogger(_name).addFilter(_not_of_orbax)
_usual_hook, sys.unraisablehook = sys.unraisablehook, _quiet_hook
warnings.filterwarnings("ignore", "coroutine '.*' was never awaited", RuntimeWarning)  # mypy finds most of ours


class Checkpointer:
    """Saves and restores the checkpoints of one folder; the newest `keep` stay.

    Each host makes one over the same shared folder; all call the same methods in the same order.
    """

    def __init__(self, directory: str | Path, *, keep: int = 2, read_only: bool = False) -> None:
        """Opens a folder.

        Args:
          directory: made if needed; partial checkpoints of a killed run are removed.
          keep: how many checkpoints stay.
          read_only: changes nothing in the folder, which a run may be writing to.

        Raises:
          InputError: the folder cannot be written.
        """
        import orbax.checkpoint as ocp

        self._ocp = ocp
        self.directory = Path(directory).absolute()
        if read_only:
            options = ocp.CheckpointManagerOptions(read_only=True)
        else:
            check_writable(self.directory, "--workdir")
            self.directory.mkdir(parents=True, exist_ok=True)
            # Folders at once: when one cannot be made in the background, the threads that need it wait for 20 minutes.
            writes = ocp.AsyncOptions(create_directories_asynchronously=False)
            options = ocp.CheckpointManagerOptions(max_to_keep=keep, cleanup_tmp_directories=True, async_options=writes)
        self._written: set[int] = set()
        self._manager = ocp.CheckpointManager(self.directory, options=options)

    def iterations(self) -> list[int]:
        """The iterations of all complete checkpoints, oldest first."""
        return sorted(self._manager.all_steps())

    def save(self, iteration: int, state: TrainState, record: Mapping[str, Any]) -> None:
        """As `save_parts`, of a train state."""
        self.save_parts(iteration, parts_of(state), record)

    def save_parts(self, iteration: int, parts: Mapping[str, Any], record: Mapping[str, Any]) -> None:
        """Starts writing a checkpoint, unless this object has written that iteration.

        The arrays may be donated once this returns. A damaged checkpoint of the same number is replaced.

        Args:
          iteration: its number.
          parts: trees of arrays by name, as from `parts_of`.
          record: plain JSON values.

        Raises:
          StorageError: this checkpoint or the one before cannot be written.
        """
        if iteration in self._written:
            return
        if jax.default_backend() == "cpu":
            # Orbax gets views of device memory there, and the next update writes into it.
            parts = jax.tree.map(jnp.copy, dict(parts))
        args = self._ocp.args
        # To JSON and back: a value that JSON cannot hold fails here, not in the background.
        content = json.loads(json.dumps({"record": record, "checksums": {n: checksum(t) for n, t in parts.items()}}))
        items = {name: args.StandardSave(tree) for name, tree in parts.items()}
        items["record"] = args.JsonSave(content | {"checksum": _digest(content)})
        with self._writing():
            if iteration in self._manager.all_steps():
                self._manager.delete(iteration)
            self._manager.save(iteration, args=args.Composite(**items), force=True)
        self._written.add(iteration)

    def restore(self, like: TrainState, shardings: TrainState | None = None) -> Restored | None:
        """Reads the newest valid checkpoint; a warning names each newer one that is damaged.

        Args:
          like: a state of the same shapes: arrays or `jax.ShapeDtypeStruct`s.
          shardings: of the result, whatever mesh it was saved from; default: those of `like`.

        Returns:
          The state and the record, or None if there is no checkpoint.

        Raises:
          InputError: there are checkpoints and none can be read.
        """
        if shardings is not None:
            like = jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), like, shardings)
        found = self.restore_parts(parts_of(like))
        return None if found is None else (state_of(found), found["record"])

    def restore_parts(self, like: Mapping[str, Any]) -> dict[str, Any] | None:
        """Reads parts of the newest valid checkpoint; see `restore`.

        Args:
          like: the name of each part -> a tree with its shapes and shardings.

        Returns:
          The parts, "iteration" and "record", or None if there is no checkpoint.

        Raises:
          InputError: also if a checkpoint was saved without one of the parts.
        """
        self.wait()
        problem = ""
        iterations = self.iterations()
        for iteration in reversed(iterations):
            try:
                found = self._read(iteration, like)
            except Exception as err:  # Orbax raises many types for a damaged file
                if isinstance(err, InputError | MemoryError) or "RESOURCE_EXHAUSTED" in str(err):
                    raise  # it may be whole
                problem = _first_line(err)
                logger.warning("checkpoint %d in %s is damaged, not used: %s", iteration, self.directory, problem)
                continue
            if problem:
                logger.warning("using checkpoint %d in %s instead", iteration, self.directory)
            return found
        if problem:
            raise InputError(
                f"{self.directory}: none of its {len(iterations)} checkpoints can be read ({problem}); remove the "
                "folder or choose another --workdir"
            )
        return None

    def _read(self, iteration: int, like: Mapping[str, Any]) -> dict[str, Any]:
        """The parts of one checkpoint, "iteration" and "record"; raises if a checksum differs."""
        args = self._ocp.args
        content = dict(self._manager.restore(iteration, args=args.Composite(record=args.JsonRestore()))["record"])
        if content.pop("checksum", None) != _digest(content):
            raise ValueError("the checksum of its record differs")
        if missing := sorted(like.keys() - content["checksums"].keys()):
            raise InputError(
                f"{self.directory}: checkpoint {iteration} has no {', '.join(missing)}: another version of gigpo_jax "
                "wrote it; write its model with `gigpo export`, and train that (model.path) in another --workdir"
            )
        wanted = {name: args.StandardRestore(jax.tree.map(_abstract, tree)) for name, tree in like.items()}
        got = self._manager.restore(iteration, args=args.Composite(**wanted)) if wanted else {}
        for name in like:
            if checksum(got[name]) != content["checksums"][name]:
                raise ValueError(f"the checksum of its {name} differs")
        # A copy: a restored array may share memory with a read buffer, and updates take over the state.
        parts = {name: jax.tree.map(jnp.copy, got[name]) for name in like}
        return parts | {"iteration": iteration, "record": content["record"]}

    def wait(self) -> None:
        """Returns when all checkpoints are complete.

        Raises:
          StorageError: one cannot be written.
        """
        with self._writing():
            self._manager.wait_until_finished()

    def close(self) -> None:
        """As `wait`; then ends the threads."""
        with self._writing():
            self._manager.close()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Turns every error of Orbax into a `StorageError`."""
        try:
            yield
        except Exception as err:
            system = re.search(r"\[os_error_code='?(\d+)", str(err))
            reason = os.strerror(int(system[1])) if system else getattr(err, "strerror", None) or _first_line(err)
            last = max((int(path.name) for path in self.directory.iterdir() if path.name.isdecimal()), default=None)
            onwards = "starts again" if last is None else f"continues from checkpoint {last}"
            raise StorageError(
                f"{self.directory}: a checkpoint cannot be written ({reason}); free space or mend the disk, then run "
                f"the same command: it {onwards}"
            ) from err


def parts_of(state: TrainState, prefix: str = "") -> dict[str, Any]:
    """A train state as the parts of a checkpoint."""
    return {f"{prefix}params": state.params, f"{prefix}rest": replace(state, params=None)}


def state_of(parts: Mapping[str, Any], prefix: str = "") -> TrainState:
    """The train state of parts from `parts_of`."""
    return replace(parts[f"{prefix}rest"], params=parts[f"{prefix}params"])


def newest_params(directory: str | Path, like: Any, part: str = "params") -> tuple[Any, int]:
    """Reads the parameters of the newest checkpoint, for evaluation and export.

    Args:
      directory: a run's `checkpoints/`.
      like: the parameters or their shapes, with the shardings of the result.
      part: "params", or "critic_params".

    Returns:
      The parameters and their iteration; `like` and 0 if there is no checkpoint.

    Raises:
      InputError: there are checkpoints and none can be read.
    """
    if not Path(directory).is_dir():
        return like, 0
    checkpoints = Checkpointer(directory, read_only=True)
    try:
        found = checkpoints.restore_parts({part: like})
    finally:
        checkpoints.close()
    return (like, 0) if found is None else (found[part], found["iteration"])


def newest_record(directory: str | Path) -> dict[str, Any]:
    """The record of the newest checkpoint; empty if there is none. Raises as `newest_params`."""
    if not Path(directory).is_dir():
        return {}
    checkpoints = Checkpointer(directory, read_only=True)
    try:
        found = checkpoints.restore_parts({})
    finally:
        checkpoints.close()
    return {} if found is None else dict(found["record"])


def checksum(tree: Any) -> str:
    """A checksum of arrays, computed on the device, the same for every sharding.

    It sees every change of one element, and any other change with a probability of 1 - 2^-32.
    """
    sums = jax.device_get(_sums([x for x in jax.tree.leaves(tree) if np.size(x)]))
    return hashlib.sha256(np.asarray(sums, np.uint32).tobytes()).hexdigest()[:16]


@jax.jit
def _sums(leaves: list[jax.Array]) -> list[jax.Array]:
    """Each array's sum modulo 2^32 of its elements' bits, mixed with their index (MurmurHash3's finaliser)."""
    sums = []
    for x in map(jnp.asarray, leaves):
        if x.dtype == bool:
            x = x.astype(jnp.uint8)
        mixed = jax.lax.bitcast_convert_type(x, f"uint{8 * x.dtype.itemsize}").astype(jnp.uint32)
        stride = 1
        for axis in reversed(range(x.ndim)):
            place = jax.lax.broadcasted_iota(jnp.uint32, x.shape, axis)
            mixed += place * np.uint32(stride * 0x9E3779B9 % 2**32)
            stride *= x.shape[axis]
        mixed = (mixed ^ (mixed >> 16)) * np.uint32(0x85EBCA6B)
        mixed = (mixed ^ (mixed >> 13)) * np.uint32(0xC2B2AE35)
        sums.append((mixed ^ (mixed >> 16)).sum(dtype=jnp.uint32))
    return sums


def _first_line(err: Exception) -> str:
    return f"{type(err).__name__}: {str(err).partition(chr(10))[0][:200]}"


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def _abstract(x: Any) -> Any:
    if isinstance(x, jax.Array | jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)
    return jax.ShapeDtypeStruct(np.shape(x), np.asarray(x).dtype)
