"""Checkpoints that cannot be written."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from gigpo_jax.core.errors import StorageError, first_line, storage_fix


def storage_error(directory: Path, numbers: Sequence[int], err: Exception) -> StorageError:
    """Words an error of Orbax; `numbers` has the iterations of the complete checkpoints."""
    resume = f"continues from checkpoint {max(numbers)}" if numbers else "starts again"
    code = _system_code(err)
    reason = os.strerror(code) if code else first_line(err)
    return StorageError(
        f"{directory}: a checkpoint cannot be written ({reason}); "
        f"{storage_fix(code)}, then run the same command: it {resume}"
    )


def _system_code(err: Exception) -> int | None:
    """The operating system's number of an Orbax error, or None."""
    # TensorStore's errors have the system's number only in their text.
    match = re.search(r"\[os_error_code='?(\d+)", str(err))
    return int(match[1]) if match else getattr(err, "errno", None)
