"""The folder of a run: its lock, its config and the machines that worked on it."""

import contextlib
import fcntl
import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import jax
import numpy as np
from ml_collections import ConfigDict

from gigpo_jax.core.errors import InputError
from gigpo_jax.core.files import check_writable, read_object, write_json
from gigpo_jax.core.machine import describe_machine
from gigpo_jax.devices.exchange import all_hosts
from gigpo_jax.run.workdir_names import BASE, CONFIG, FIX_TORN_FILE, LOCK, MACHINE

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def open_workdir(workdir: Path, config: ConfigDict) -> Iterator[None]:
    """Makes and locks the folder of a run, and removes it if the block ends before `claim_workdir`.

    Raises:
      InputError: it cannot be written, another run uses it, or its config.json differs.
    """
    check_writable(workdir, "--workdir")
    with _locked(workdir):
        if (workdir / CONFIG).exists():
            # Most runs begin; only one that continues has a config to compare.
            from gigpo_jax.run.resumed import check_same_config, say_growth

            say_growth(check_same_config(workdir, config), config)
        yield


@contextlib.contextmanager
def _locked(workdir: Path) -> Iterator[None]:
    """Holds an flock on a folder for all hosts, which the first host takes.

    The lock ends with the process.

    Raises:
      InputError: another process holds it.
    """
    if jax.process_index() > 0:
        # Takes part in the exchange: if the first host is refused, all are.
        _refuse_if_any(workdir, "")
        yield
        return
    # Listed before they are made: a start that fails removes what it made, and nothing else.
    created_folders = [path for path in (workdir, *workdir.parents) if not path.exists()]
    workdir.mkdir(parents=True, exist_ok=True)
    previous_files = set(workdir.iterdir())
    # "a+" does not truncate: the name of a holder must survive this.
    with (workdir / LOCK).open("a+") as file:
        _refuse_if_any(workdir, _lock_file(file, workdir))
        try:
            yield
        finally:
            # config.json is written at the end of set-up. Without it this start has failed, and the
            # folder takes another config. Somebody may have removed the whole folder meanwhile.
            if workdir.exists() and not (workdir / CONFIG).exists():
                from gigpo_jax.run.failed_start import remove_created

                remove_created(workdir, previous_files, created_folders)


def _lock_file(file: TextIO, workdir: Path) -> str:
    """Locks a file and returns the lock's other holder, or ""; warns if there are no locks."""
    try:
        # Without waiting: a run may take days. The system releases the lock however the process
        # ends.
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        # Empty on a full disk, or before the holder has written its name.
        return file.read() or "another process"
    except OSError as err:
        logger.warning(
            "%s: cannot be locked (%s); start no second run in this folder", workdir, err.strerror
        )
    if os.fstat(file.fileno()).st_nlink == 0:
        # A start that was refused has removed the file since it was opened.
        return "a start that is ending"
    # On a full disk the lock holds without a name. The name goes around the file's buffer, which
    # would be written once more, and fail, when the file is closed.
    with contextlib.suppress(OSError):
        file.truncate(0)
        os.write(file.fileno(), f"process {os.getpid()} on {socket.gethostname()}".encode())
    return ""


def _refuse_if_any(workdir: Path, holder: str) -> None:
    # An exchange of all hosts: only the first one knows the result, and all must end or continue.
    if all_hosts(np.array([bool(holder)])).any():
        raise InputError(
            f"in use by {holder or 'another run'}",
            key="--workdir",
            value=workdir,
            fix="wait for its end or choose another folder",
        )


def claim_workdir(workdir: Path, config: ConfigDict, base: str = "") -> None:
    """Writes config.json and `Policy.base` once set-up is done.

    So the folder takes any config after a start that failed. Existing files stay, but config.json
    takes a larger `train.iterations`.
    """
    if jax.process_index() > 0:
        return
    # Before config.json, which marks the folder as claimed.
    if base and not (workdir / BASE).exists():
        write_json(workdir / BASE, {"base": base})
    path = workdir / CONFIG
    iterations = config.train.iterations
    content = read_object(path, FIX_TORN_FILE) if path.exists() else config.to_dict()
    if not path.exists() or iterations > content["train"]["iterations"]:
        write_json(path, content | {"train": content["train"] | {"iterations": iterations}})


def record_machine(workdir: Path, done: int) -> None:
    """Writes this machine's type if the previous start had another.

    Args:
      workdir: Folder of the run.
      done: Iterations or updates that earlier starts have made.
    """
    if jax.process_index() > 0:
        return
    path = workdir / MACHINE
    starts = []
    # A record for people: a damaged one stops no run.
    with contextlib.suppress(InputError):
        starts = list(read_object(path).get("starts", ()))
    devices = f"{jax.device_count()} x {jax.devices()[0].device_kind}"
    start = {"done": done, **describe_machine(), "devices": devices}
    # `done` grows with every start, so it is left out of the comparison.
    if not starts or starts[-1] | {"done": done} != start:
        write_json(path, {"starts": [*starts, start]})


def host_folder(workdir: Path) -> Path:
    """Returns the folder of this host's metrics: the workdir on the first host, else one in it."""
    return workdir if jax.process_index() == 0 else workdir / f"host{jax.process_index()}"
