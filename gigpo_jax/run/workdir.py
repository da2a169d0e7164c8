"""The folder of a run: its lock, its config, and whether it can be written."""

import contextlib
import fcntl
import logging
import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import jax
import numpy as np
from ml_collections import ConfigDict

from gigpo_jax.config.keys import KEYS
from gigpo_jax.config.resolve import with_defaults
from gigpo_jax.config.tree import flat
from gigpo_jax.errors import InputError, nearest
from gigpo_jax.files import read_object, write_json
from gigpo_jax.run import partition, report

logger = logging.getLogger(__name__)

CONFIG = "config.json"
LOCK = ".lock"
BASE = "base.json"  # which weights the adapter of a run belongs to
_SET_UP = ("checkpoints", "metrics.jsonl")  # logs of servers stay: errors name them
_TORN = "restore the file from a copy or choose another --workdir"


@contextlib.contextmanager
def open_workdir(workdir: Path, config: ConfigDict) -> Iterator[None]:
    """Makes and locks the folder of a run; removes it if the block ends before `claim_workdir`.

    Raises:
      InputError: it cannot be written, another run uses it, or its config.json differs.
    """
    check_writable(workdir, "--workdir")
    with _locked(workdir):
        _check_config(workdir, config)
        yield


@contextlib.contextmanager
def _locked(workdir: Path) -> Iterator[None]:
    """Holds an flock on a folder, on the first host for all hosts of a run; it ends with the process.

    Raises:
      InputError: another process holds it.
    """
    if jax.process_index() > 0:
        _refuse_if_any(workdir, "")
        yield
        return
    made = [path for path in (workdir, *workdir.parents) if not path.exists()]
    workdir.mkdir(parents=True, exist_ok=True)
    before = set(workdir.iterdir())
    with (workdir / LOCK).open("a+") as file:
        _refuse_if_any(workdir, _holder(file, workdir))
        try:
            yield
        finally:
            if not (workdir / CONFIG).exists():
                (workdir / LOCK).unlink()
                for path in {workdir / name for name in _SET_UP} & set(workdir.iterdir()) - before:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
                with contextlib.suppress(OSError):  # it holds something
                    for path in made:
                        path.rmdir()


def _holder(file: TextIO, workdir: Path) -> str:
    """Locks a file; returns who else holds the lock, or "". A file system without locks gives a warning."""
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
        ours = flat(config.to_dict())
        theirs = with_defaults(read_object(path, _TORN), ours)
        differing = [
            f"{key}={ours.get(key)!r} (there: {theirs.get(key)!r})"
            for key in sorted(ours.keys() | theirs.keys())
            if ours.get(key) != theirs.get(key)
            and not (key in KEYS and KEYS[key].allows(theirs.get(key), ours.get(key)))
        ]
        if differing:
            raise InputError(
                f"--workdir={workdir}: holds a run of another config; choose another folder or use the same values: "
                + "; ".join(differing)
            )
        before, now = theirs["train.iterations"], config.train.iterations
        if now > before:
            how = "".join(f", {key}={ours[key]} is now over all {now}" for key in _scheduled(config))
            report.say(f"train.iterations grows from {before} to {now}{how}")


def _scheduled(config: ConfigDict) -> list[str]:
    """The keys of what depends on the number of iterations."""
    keys = {
        "optim.warmup_fraction": config.optim.warmup_fraction > 0,
        "optim.schedule": config.optim.schedule != "constant",
        "rl.hoelder_last": "hoelder" in config.rl.ratio and config.rl.hoelder_first != config.rl.hoelder_last,
    }
    return [key for key, depends in keys.items() if depends]


def claim_workdir(workdir: Path, config: ConfigDict, base: str = "") -> None:
    """Writes config.json and `Policy.base`, once set-up is done: after a failed start the folder takes any config.

    The files of before stay; config.json takes a larger `train.iterations`.
    """
    if jax.process_index() > 0:
        return
    if base and not (workdir / BASE).exists():
        write_json(workdir / BASE, {"base": base})
    path, iterations = workdir / CONFIG, config.train.iterations
    content = read_object(path, _TORN) if path.exists() else config.to_dict()
    if not path.exists() or iterations > content["train"]["iterations"]:
        write_json(path, content | {"train": content["train"] | {"iterations": iterations}})


def check_run(workdir: Path, *, initial: bool) -> None:
    """Refuses to read weights of a workdir without checkpoints, unless those of `model.path` are asked for.

    Raises:
      InputError: there is no checkpoint, or there is one and `initial` is given.
    """
    found = any((workdir / "checkpoints").glob("*"))
    if initial and found:
        raise InputError(
            f"--initial: --workdir={workdir} holds checkpoints; leave --initial out or choose another folder"
        )
    if not (initial or found):
        runs = [path.parent.name for path in workdir.parent.glob(f"*/{CONFIG}")]
        near = "".join(f"{workdir.parent / name}, " for name in nearest(workdir.name, runs))
        raise InputError(
            f"--workdir={workdir}: no checkpoint in it; name the workdir of a training run"
            + (f" (nearest: {near[:-2]})" if near else "")
            + ", or add --initial for the weights of config.model.path"
        )


def check_adapter(workdir: Path, config: ConfigDict, base: str) -> None:
    """Refuses checkpoints of another adapter, or of one of another model: they hold neither its scale nor the model.

    Args:
      workdir: of the run; it may have no checkpoints.
      config: of the process that is about to read them.
      base: its `Policy.base`.

    Raises:
      InputError: names what differs.
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
    """The values of a flat config that define an adapter."""
    rank = values.get("model.lora.rank", 0)
    shape = {"alpha": values["model.lora.alpha"], "targets": sorted(values["model.lora.targets"])} if rank else {}
    shape |= {"vision": True} if rank and values.get("model.lora.vision") else {}
    return {"rank": rank} | shape


def check_writable(folder: Path, flag: str) -> None:
    """Makes and removes a file in a folder, or in the nearest parent that exists.

    Raises:
      InputError: that fails; the message names the command-line flag.
    """
    nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    probe = nearest / f".probe.{jax.process_index()}.{os.getpid()}"
    try:
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise InputError(f"{flag}={folder}: cannot be written ({error.strerror}); choose another folder") from error


def host_folder(workdir: Path) -> Path:
    """Where this host writes its metrics: the first host in the workdir, others in a folder of it."""
    return workdir if jax.process_index() == 0 else workdir / f"host{jax.process_index()}"
