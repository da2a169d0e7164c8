"""Removes what a start has made that failed before it claimed its folder."""

import contextlib
import shutil
from collections.abc import Collection, Sequence
from pathlib import Path

from gigpo_jax.run.workdir_names import CHECKPOINTS, LOCK, METRICS

# Logs of servers stay: errors name them.
_CREATED_BY_START = (CHECKPOINTS, METRICS)


def remove_created(
    workdir: Path, previous_files: Collection[Path], created_folders: Sequence[Path]
) -> None:
    """Removes lock, checkpoints and metrics of this start, and its folders if they are empty.

    Args:
      workdir: Folder of the run, whose lock this process holds.
      previous_files: Files that were there before the start.
      created_folders: Folders that the start has made, the innermost first.
    """
    # While the lock is held: a process that has opened the file meanwhile sees that it has no name
    # any more (`workdir._lock_file`).
    (workdir / LOCK).unlink(missing_ok=True)
    for path in set(workdir.iterdir()) - {*previous_files}:
        if path.name not in _CREATED_BY_START:
            continue
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    with contextlib.suppress(OSError):  # a folder is not empty
        for path in created_folders:
            path.rmdir()
