"""The folder of a run: which config it belongs to, and whether it can be written."""

import contextlib
import fcntl
import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import jax
import numpy as np
from ml_collections import ConfigDict

from gigpo_jax.config.keys import KEYS
from gigpo_jax.config.resolve import flat
from gigpo_jax.errors import InputError
from gigpo_jax.files import write_json
from gigpo_jax.models.json_file import read_object
from gigpo_jax.run import partition

logger = logging.getLogger(__name__)

CONFIG = "config.json"
LOCK = ".lock"
BASE = "base.json"  # which weights the adapter of a run belongs to
_TORN = "restore the file from a copy or choose another --workdir"


@contextlib.contextmanager
def open_workdir(workdir: Path, config: ConfigDict) -> Iterator[None]:
    """Holds the folder of a run; the folder goes again if the block ends before `claim_workdir`.

    Args:
      workdir: of the run; it need not exist.
      config: compared with the config.json that is there.

    Raises:
      InputError: it cannot be written, another run uses it, or another config was trained here.
    """
    check_writable(workdir, "--workdir")
    with _locked(workdir):
        _check_config(workdir, config)
        yield


@contextlib.contextmanager
def _locked(workdir: Path) -> Iterator[None]:
    """Holds the lock of a folder; the first host does so for all hosts of a run.

    The lock is the operating system's (flock), which ends it with the process. On NFS the server keeps it for all
    machines, and for the length of its lease when a machine is lost. A file system without locks gives a warning.

    Raises:
      InputError: another process holds it.
    """
    if jax.process_index() > 0:
        _refuse_if_any(workdir, "")
        yield
        return
    made = [path for path in (workdir, *workdir.parents) if not path.exists()]
    workdir.mkdir(parents=True, exist_ok=True)
    with (workdir / LOCK).open("a+") as file:
        _refuse_if_any(workdir, _holder(file, workdir))
        try:
            yield
        finally:
            if not (workdir / CONFIG).exists():
                (workdir / LOCK).unlink()
                with contextlib.suppress(OSError):  # it holds something
                    for path in made:
                        path.rmdir()


def _holder(file: TextIO, workdir: Path) -> str:
    """Locks a file; who else holds the lock, or ""."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        return file.read() or "another process"
    except OSError as err:
        logger.warning("%s: cannot be locked (%s); start no second run in this folder", workdir, err.strerror)
    if os.fstat(file.fileno()).st_nlink == 0:  # a start that was refused removed it since it was opened
        return "a start that is ending"
    with contextlib.suppress(OSError):  # a full disk: the lock holds without the name
        file.truncate(0)
        print(f"process {os.getpid()} on {socket.gethostname()}", end="", file=file, flush=True)
    return ""


def _refuse_if_any(workdir: Path, holder: str) -> None:
    if partition.all_hosts(np.array([bool(holder)])).any():
        raise InputError(
            f"--workdir={workdir}: in use by {holder or 'another run'}; wait for its end or choose another folder"
        )


def _check_config(workdir: Path, config: ConfigDict) -> None:
    path = workdir / CONFIG
    if path.exists():
        ours, theirs = flat(config.to_dict()), flat(read_object(path, _TORN))
        defaults = flat({key: spec.default for key, spec in KEYS.items() if key in ours})
        theirs = defaults | theirs  # the file may be older than a key
        differing = [
            f"{key}={ours.get(key)!r} (there: {theirs.get(key)!r})"
            for key in sorted(ours.keys() | theirs.keys())
            if ours.get(key) != theirs.get(key) and not (key in KEYS and KEYS[key].may_change)
        ]
        if differing:
            raise InputError(
                f"--workdir={workdir}: holds a run of another config; choose another folder or use the same values: "
                + "; ".join(differing)
            )


def claim_workdir(workdir: Path, config: ConfigDict, base: str = "") -> None:
    """Writes config.json once a run has all it needs: a start that failed leaves the folder to the next config.

    Args:
      workdir: of the run.
      config: of the run.
      base: `Policy.base`, kept beside it for `check_adapter`.
    """
    for path, content in ((workdir / BASE, {"base": base} if base else None), (workdir / CONFIG, config.to_dict())):
        if jax.process_index() == 0 and content is not None and not path.exists():
            write_json(path, content)


def check_adapter(workdir: Path, config: ConfigDict, base: str) -> None:
    """Refuses to take the checkpoints of a run for another adapter than it trained, or for one of another model.

    Checkpoints of an adapter hold neither its scale nor the model below it.

    Args:
      workdir: of the run; without checkpoints there is nothing to check.
      config: how they are about to be read.
      base: `Policy.base`.

    Raises:
      InputError: with what differs.
    """
    if not (workdir / CONFIG).exists() or not any((workdir / "checkpoints").glob("*")):
        return
    found = flat(read_object(workdir / CONFIG, _TORN))
    asked, trained = (_adapter(values) for values in (flat(config.to_dict()), found))
    if asked != trained:
        raise InputError(
            f"--workdir={workdir}: its checkpoints were trained with config.model.lora {trained}, given is {asked}; "
            "use the same values"
        )
    known = read_object(workdir / BASE, _TORN).get("base") if (workdir / BASE).exists() else base
    if base != known:
        raise InputError(
            f"config.model.path={config.model.path!r}: not the weights that the adapter in --workdir={workdir} was "
            f"trained on (there: model.path={found.get('model.path')!r}); name the folder that has them"
        )


def _adapter(values: dict[str, Any]) -> dict[str, Any]:
    """What of a flat config decides what an adapter means."""
    rank = values.get("model.lora.rank", 0)
    shape = {"alpha": values["model.lora.alpha"], "targets": sorted(values["model.lora.targets"])} if rank else {}
    return {"rank": rank} | shape


def check_writable(folder: Path, flag: str) -> None:
    """Makes a file for a moment, in a folder or in the nearest parent that exists.

    Args:
      folder: where something will be written later.
      flag: the command-line flag that named it.

    Raises:
      InputError: that cannot be done.
    """
    nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    probe = nearest / f".probe.{jax.process_index()}.{os.getpid()}"
    try:
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise InputError(f"{flag}={folder}: cannot be written ({error.strerror}); choose another folder") from error


def host_folder(workdir: Path) -> Path:
    """Where this host writes its metrics: the workdir itself for the first host, a folder in it for the others."""
    return workdir if jax.process_index() == 0 else workdir / f"host{jax.process_index()}"
