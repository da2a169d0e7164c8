"""Finds and reads the files of saved runs."""

import json
from pathlib import Path
from typing import Any

from gigpo_jax.core.errors import InputError
from gigpo_jax.core.spelling import nearest_names
from gigpo_jax.run.workdir_names import CONFIG, METRICS


def read_records(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Reads the config and the metrics of a run.

    Args:
      folder: Workdir.

    Returns:
      Content of config.json, and a record for each line of metrics.jsonl.

    Raises:
      InputError: There is no run, it has no metrics yet, or a file is damaged.
    """
    try:
        if (folder / CONFIG).is_file() and not (folder / METRICS).exists():
            raise InputError("has no metrics yet", key=folder, fix="wait for its first line")
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        lines = (folder / METRICS).read_text(encoding="utf-8").splitlines()
        return config, [json.loads(line) for line in lines]
    except (FileNotFoundError, NotADirectoryError) as error:
        fix = f"give the workdir of a training run{describe_nearest(folder)}"
        raise InputError("holds no run", key=folder, fix=fix) from error
    except OSError as error:
        reason = f"cannot be read ({error.strerror})"
        raise InputError(reason, key=folder, fix="mend it or give another workdir") from error
    except (ValueError, RecursionError) as error:
        reason = f"holds no run that can be read ({error!s:.200})"
        raise InputError(reason, key=folder, fix="give another workdir") from error


def find_saved_config(workdir: str) -> str:
    """The config.json of a workdir, for commands without --config.

    Raises:
      InputError: no workdir is given, or there is no run in it.
    """
    if not workdir:
        fix = "name the run with --workdir=DIR, or a config, for example --config=quickstart"
        raise InputError("missing", key="--config", fix=fix)
    path = Path(workdir) / CONFIG
    if not path.is_file():
        fix = f"name the workdir of a run{describe_nearest(Path(workdir))}, or add --config=NAME"
        raise InputError(f"holds no {CONFIG}", key="--workdir", value=workdir, fix=fix)
    return str(path)


def describe_nearest(folder: Path) -> str:
    """Names at most three likely runs in the folder, or beside it with a similar name, or ""."""
    runs = sorted(str(path.parent) for path in folder.glob(f"*/{CONFIG}"))[:3]
    if not runs:
        names = [path.parent.name for path in folder.parent.glob(f"*/{CONFIG}")]
        runs = [str(folder.parent / name) for name in nearest_names(folder.name, names)]
    return f" (nearest: {', '.join(runs)})" if runs else ""
