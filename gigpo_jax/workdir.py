"""The folder of a run: which config it belongs to, and whether it can be written."""

import json
import os
from pathlib import Path
from typing import Any

import jax
from ml_collections import ConfigDict

from gigpo_jax.errors import InputError
from gigpo_jax.metrics import write_json

# What may differ when a run goes on: where it runs and what it shows, not what it computes.
FREE = ("env.workers", "env.start_timeout_s", "env.step_timeout_s", "checkpoint.", "train.save_rollouts")


def open_workdir(workdir: Path, config: ConfigDict) -> None:
    """Makes the folder of a run, or checks that it belongs to this config.

    Args:
      workdir: created if needed, with checkpoints/ and rollouts/.
      config: written to config.json the first time.

    Raises:
      InputError: it cannot be written, or another config was trained here.
    """
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        probe = workdir / f".probe.{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise InputError(f"--workdir={workdir}: cannot be written ({error.strerror}); choose another folder") from error
    path = workdir / "config.json"
    ours = flat(config.to_dict())
    if path.exists():
        theirs = flat(json.loads(path.read_text(encoding="utf-8")))
        differing = [
            f"{key}={ours.get(key)!r} (there: {theirs.get(key)!r})"
            for key in sorted(ours.keys() | theirs.keys())
            if ours.get(key) != theirs.get(key) and not key.startswith(FREE)
        ]
        if differing:
            raise InputError(
                f"--workdir={workdir}: holds a run of another config; choose another folder or use the same values: "
                + "; ".join(differing)
            )
    else:
        write_json(path, config.to_dict())
    for name in ("checkpoints", "rollouts"):
        (workdir / name).mkdir(exist_ok=True)


def host_folder(workdir: Path) -> Path:
    """Where this host writes its metrics: the workdir itself for the first host, a folder in it for the others."""
    return workdir if jax.process_index() == 0 else workdir / f"host{jax.process_index()}"


def flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested dicts as one, with dotted keys; tuples become lists, as JSON has them."""
    out: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            out |= flat(value, f"{prefix}{key}.")
        else:
            out[prefix + key] = list(value) if isinstance(value, tuple) else value
    return out
