"""Compiled programs, kept in the user's cache folder for the next start.

jax does the work. This module chooses a folder that is of one version of jax and one type of CPU
alone, and removes entries that a crash or a full disk has damaged.
"""

import logging
import os
from pathlib import Path

import jax
import jaxlib
from filelock import FileLock, Timeout
from jax._src import compilation_cache  # its public part does not name the compression

from gigpo_jax.core.errors import InputError
from gigpo_jax.core.machine import fingerprint_cpu
from gigpo_jax.env_bridge.paths import cache_folder

LIMIT_GIB = 1.0  # ten versions of a run's programs, and no surprise in a home folder
MIN_COMPILE_S = 0.1  # programs that compile faster are not worth a file
LOCK_LIMIT_S = 30.0
_LOCK = ".lockfile"  # jax's own
_CHECKED = ".checked"  # written at each start
_ENTRY = "-cache"
_ACCESS_TIME = "-atime"

logger = logging.getLogger(__name__)


def use_program_cache() -> None:
    """Lets jax keep compiled programs for the next start.

    Call it before the first one compiles. Nothing happens if the user has chosen a folder of jax's
    own (JAX_COMPILATION_CACHE_DIR), or none (JAX_ENABLE_COMPILATION_CACHE=false). A folder that
    cannot be used gives one warning.
    """
    if not jax.config.values["jax_enable_compilation_cache"] or os.environ.get(
        "JAX_COMPILATION_CACHE_DIR"
    ):
        return
    try:
        folder = _open_folder()
    # NotImplementedError comes from file systems without locks.
    except (InputError, OSError, NotImplementedError, Timeout) as err:
        logger.warning("compiled programs are not kept: %s", " ".join(str(err).split()))
        return
    jax.config.update("jax_compilation_cache_max_size", round(LIMIT_GIB * 2**30))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", MIN_COMPILE_S)
    jax.config.update("jax_compilation_cache_dir", str(folder))


def folder_name() -> str:
    """Names the folder for this jax version and CPU type."""
    # XLA compiles for the features of the CPU: with a home folder that machines share, another CPU
    # could meet an instruction that it does not have.
    return f"jax-{jax.__version__}_jaxlib-{jaxlib.__version__}_cpu-{fingerprint_cpu()}"


def _open_folder() -> Path:
    """The folder, without damaged entries.

    Raises:
      InputError, OSError, NotImplementedError, Timeout: It cannot be made, written or locked.
    """
    folder = cache_folder(f"programs/{folder_name()}")
    # Other processes may be writing entries, under the same lock.
    with FileLock(folder / _LOCK, timeout=LOCK_LIMIT_S):
        for path in _damaged_entries(folder):
            logger.warning("%s: a damaged entry, removed", path)
            path.unlink()
            _access_time(path).unlink(missing_ok=True)
        # Under the lock: an entry that another process adds later is newer than this mark.
        (folder / _CHECKED).touch()
    return folder


def _damaged_entries(folder: Path) -> list[Path]:
    """Lists broken entries, and entries without their access time.

    jax never replaces an entry. So a broken one would be compiled at every start, and an entry
    without its access time would stop jax from adding others.
    """
    checked = folder / _CHECKED
    checked_s = checked.stat().st_mtime if checked.exists() else 0.0

    def is_intact(path: Path) -> bool:
        # A folder may hold a gigabyte: each entry is read once. Damage happens while an entry is
        # written; those that an earlier start has checked are whole.
        return path.stat().st_mtime < checked_s or _is_whole(path)

    entries = sorted(folder.glob(f"*{_ENTRY}"))
    return [path for path in entries if not (_access_time(path).exists() and is_intact(path))]


def _access_time(entry: Path) -> Path:
    return entry.with_name(entry.name.removesuffix(_ENTRY) + _ACCESS_TIME)


def _is_whole(path: Path) -> bool:
    """Tests whether jax can read an entry, compressed by zlib or zstd with a checksum."""
    content = path.read_bytes()
    try:
        return bool(compilation_cache.decompress_executable(content))
    except Exception:  # an entry that cannot be read is removed, whatever the reason
        return False
