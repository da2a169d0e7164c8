"""Silences messages of Orbax about an error that it raises as well."""

import functools
import logging
import sys
import traceback
import warnings
from types import TracebackType

_ORBAX_MARKS = ("/orbax/", "tensorstore", "os_error_code=")


@functools.cache
def silence_orbax() -> None:
    """Drops the messages, for the rest of the process.

    When reads or writes fail, Orbax raises the first error, which `checkpoint` reports. It also
    logs every error with a traceback, and closes its event loop at the first one: the remaining
    reads and writes end with errors about the loop.
    """
    # Orbax logs through absl; asyncio logs exceptions of tasks that nobody awaits.
    for name in ("absl", "asyncio"):
        logging.getLogger(name).addFilter(_is_not_of_orbax)
    # Coroutines of the closed loop; mypy finds most of ours that are not awaited.
    warnings.filterwarnings("ignore", "coroutine '.*' was never awaited", RuntimeWarning)
    # Destructors of those coroutines raise where nobody can catch it; Python reports it through
    # this hook.
    previous_hook = sys.unraisablehook

    def report_unraisable(unraisable: "sys.UnraisableHookArgs") -> None:
        is_loop_closed = str(unraisable.exc_value) == "Event loop is closed"
        if not is_loop_closed and not _is_of_orbax("", unraisable.exc_traceback):
            previous_hook(unraisable)

    sys.unraisablehook = report_unraisable


def _is_of_orbax(text: str, trace: TracebackType | None) -> bool:
    paths = [frame.filename for frame in traceback.extract_tb(trace)]
    content = " ".join([text, *paths])
    return any(mark in content for mark in _ORBAX_MARKS)


def _is_not_of_orbax(record: logging.LogRecord) -> bool:
    trace = record.exc_info[2] if record.exc_info else None
    return not _is_of_orbax(f"{record.pathname} {record.getMessage()}", trace)
