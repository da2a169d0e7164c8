"""The folder of a run: its lock, its config, and checks of both."""

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

from gigpo_jax.config.keys import KEYS, flatten
from gigpo_jax.core.errors import InputError
from gigpo_jax.core.files import check_writable, read_object, write_json
from gigpo_jax.core.machine import RECORD, describe_machine
from gigpo_jax.core.packaged import locate_file
from gigpo_jax.devices.exchange import all_hosts
from gigpo_jax.run import report
from gigpo_jax.run.records import CONFIG, METRICS, describe_nearest

logger = logging.getLogger(__name__)

LOCK = ".lock"
BASE = "base.json"  # checksum of the weights that the adapter of a run belongs to
# Removed after a start that fails. Logs of servers stay: errors name them.
_CREATED_BY_START = ("checkpoints", METRICS)
_FIX_TORN_FILE = "restore the file from a copy or choose another --workdir"


@contextlib.contextmanager
def open_workdir(workdir: Path, config: ConfigDict) -> Iterator[None]:
    """Makes and locks the folder of a run, and removes it if the block ends before `claim_workdir`.

    Raises:
      InputError: it cannot be written, another run uses it, or its config.json differs.
    """
    check_writable(workdir, "--workdir")
    with _locked(workdir):
        _say_growth(check_same_config(workdir, config), config)
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
                # While the lock is held: a process that has opened the file meanwhile sees that it
                # has no name any more (`_lock_file`).
                (workdir / LOCK).unlink(missing_ok=True)
                _remove_created(workdir, previous_files)
                with contextlib.suppress(OSError):  # a folder is not empty
                    # The innermost first.
                    for path in created_folders:
                        path.rmdir()


def _remove_created(workdir: Path, previous_files: set[Path]) -> None:
    """Removes the files of a start that failed."""
    for path in set(workdir.iterdir()) - previous_files:
        if path.name not in _CREATED_BY_START:
            continue
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


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


def check_same_config(workdir: Path, config: ConfigDict) -> dict[str, Any]:
    """A run's saved values by dotted key; {} without any.

    Raises:
      InputError: a value differs that a resumed run must not change.
    """
    path = workdir / CONFIG
    if not path.exists():
        return {}
    # A run that is not resumed needs none of it.
    from gigpo_jax.config.removed_keys import with_defaults

    values = flatten(config.to_dict())
    saved = with_defaults(read_object(path, _FIX_TORN_FILE), values)
    differences = []
    # Both: another version of the package may have more keys, or fewer.
    for key in sorted(values.keys() | saved.keys()):
        value = values.get(key)
        saved_value = saved.get(key)
        may_change = key in KEYS and KEYS[key].allows(saved_value, value)
        if value != saved_value and not may_change:
            differences.append(f"{key}={value!r} (there: {saved_value!r})")
    if differences:
        raise InputError(
            "holds a run of another config",
            key="--workdir",
            value=workdir,
            fix=f"choose another folder or use the same values: {'; '.join(differences)}",
        )
    return saved


def _say_growth(saved: dict[str, Any], config: ConfigDict) -> None:
    """Says that a run gets more iterations, and what depends on their number."""
    values = flatten(config.to_dict())
    iterations = config.train.iterations
    previous = saved.get("train.iterations", iterations)
    if iterations > previous:
        schedules = "".join(
            f", {key}={values[key]} is now over all {iterations}" for key in _scheduled_keys(config)
        )
        report.say(f"train.iterations grows from {previous} to {iterations}{schedules}")


def _scheduled_keys(config: ConfigDict) -> list[str]:
    """The keys whose effect depends on the number of iterations."""
    hoelder = "hoelder" in config.rl.ratio
    keys = {
        "optim.warmup_fraction": config.optim.warmup_fraction > 0,
        "optim.schedule": config.optim.schedule != "constant",
        "rl.hoelder_last": hoelder and config.rl.hoelder_first != config.rl.hoelder_last,
    }
    return [key for key, depends in keys.items() if depends]


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
    content = read_object(path, _FIX_TORN_FILE) if path.exists() else config.to_dict()
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
    path = workdir / RECORD
    starts = []
    # A record for people: a damaged one stops no run.
    with contextlib.suppress(InputError):
        starts = list(read_object(path).get("starts", ()))
    devices = f"{jax.device_count()} x {jax.devices()[0].device_kind}"
    start = {"done": done, **describe_machine(), "devices": devices}
    # `done` grows with every start, so it is left out of the comparison.
    if not starts or starts[-1] | {"done": done} != start:
        write_json(path, {"starts": [*starts, start]})


def check_run(workdir: Path, config: ConfigDict, *, initial: bool) -> None:
    """Refuses a workdir whose checkpoints are of another model.

    Raises:
      InputError: there is no checkpoint, or there is one and `initial` is given; or the run has
        another model.
    """
    has_checkpoints = any((workdir / "checkpoints").glob("*"))
    if initial and has_checkpoints:
        raise InputError(
            f"the folder {workdir} holds checkpoints",
            key="--initial",
            fix="leave --initial out or choose another folder",
        )
    if has_checkpoints:
        # Before an array is read: Orbax would report other shapes as damage.
        _check_same_model(workdir, config)
    if initial or has_checkpoints:
        return
    raise InputError(
        "no checkpoint in it",
        key="--workdir",
        value=workdir,
        fix=f"name the workdir of a training run{describe_nearest(workdir)}, or add --initial for "
        "the weights of config.model.path",
    )


def _check_same_model(workdir: Path, config: ConfigDict) -> None:
    """Refuses a config with another model than a folder's run: no array would fit.

    What is evaluated, and how responses are sampled, may differ.
    """
    if not (workdir / CONFIG).exists():
        return
    path = config.model.path
    saved_path = flatten(read_object(workdir / CONFIG, _FIX_TORN_FILE)).get("model.path", "")
    if not _may_be_same_model(saved_path, path):
        raise InputError(
            "not the model of the run",
            key="config.model.path",
            value=repr(path),
            fix=f"give the config of --workdir={workdir} (there: model.path={saved_path!r}), or "
            "another folder",
        )


def _may_be_same_model(saved_path: str, path: str) -> bool:
    """Returns False only if two values of `model.path` are different folders that exist here.

    A folder may have moved, and a model of the Hub may be read from a folder, so other values may
    name the same model.
    """
    if path == saved_path or not saved_path:
        return True
    files = [locate_file(name) / CONFIG for name in (saved_path, path)]
    if path and not all(file.is_file() for file in files):
        return True
    # config.json has the shape of the model: with the same one all arrays fit.
    return bool(path) and files[0].read_bytes() == files[1].read_bytes()


def check_adapter(workdir: Path, config: ConfigDict, base: str) -> None:
    """Refuses checkpoints of another adapter or base model, which they do not hold themselves.

    Args:
      workdir: Folder of the run; it may have no checkpoints.
      config: Config of the process that is about to read them.
      base: `Policy.base` of this process.

    Raises:
      InputError: names what differs.
    """
    if not (workdir / CONFIG).exists() or not any((workdir / "checkpoints").glob("*")):
        return
    saved_config = flatten(read_object(workdir / CONFIG, _FIX_TORN_FILE))
    adapter = _adapter_settings(flatten(config.to_dict()))
    saved_adapter = _adapter_settings(saved_config)
    # Another scale, or another base below, changes the model and no shape: no read would fail.
    if adapter != saved_adapter:
        raise InputError(
            f"its checkpoints were trained with config.model.lora {saved_adapter}, given is "
            f"{adapter}",
            key="--workdir",
            value=workdir,
            fix="use the same values",
        )
    if not (workdir / BASE).exists():
        return
    if base != read_object(workdir / BASE, _FIX_TORN_FILE).get("base"):
        raise InputError(
            f"not the weights that the adapter in --workdir={workdir} was trained on (there: "
            f"model.path={saved_config.get('model.path')!r})",
            key="config.model.path",
            value=repr(config.model.path),
            fix="name the folder that has them",
        )


def _adapter_settings(values: dict[str, Any]) -> dict[str, Any]:
    """The values of a flat config that define an adapter."""
    rank = values.get("model.lora.rank", 0)
    if not rank:
        return {"rank": rank}
    # The scale of an adapter is alpha / rank, and checkpoints hold neither.
    settings = {
        "rank": rank,
        "alpha": values["model.lora.alpha"],
        "targets": sorted(values["model.lora.targets"]),
    }
    if values.get("model.lora.vision"):
        settings["vision"] = True
    return settings


def host_folder(workdir: Path) -> Path:
    """Returns the folder of this host's metrics: the workdir on the first host, else one in it."""
    return workdir if jax.process_index() == 0 else workdir / f"host{jax.process_index()}"
