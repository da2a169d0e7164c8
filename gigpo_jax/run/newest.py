"""What the newest checkpoint of a run holds, for evaluation, export and signals."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gigpo_jax.run.checkpoint import Checkpointer


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
