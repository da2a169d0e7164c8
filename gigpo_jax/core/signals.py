"""Signals while a command starts: one line, and the exit status of the signal."""

import os
import signal
import sys
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGINT)


def end_at_signals() -> None:
    """Lets SIGTERM and SIGINT end the process at once.

    For the seconds in which a command imports its modules, when there is nothing to clean up. An
    exception would pass through imports of other packages there; some swallow it, others turn it
    into an error of their own.
    """
    for number in SIGNALS:
        signal.signal(number, _end)


def ends_at_signals() -> bool:
    """Whether `end_at_signals` is in effect."""
    return signal.getsignal(signal.SIGINT) is _end


def _end(number: int, frame: FrameType | None) -> None:
    # A progress bar may stand in the line of the cursor.
    clear_line = "\r\x1b[K" if sys.stderr.isatty() else ""
    message = f"{clear_line}gigpo_jax: stopped by {signal.Signals(number).name}\n"
    # Not print: the signal may have interrupted a print, and a buffered stream cannot be entered
    # twice.
    os.write(2, message.encode())
    # Not sys.exit, which raises an exception; 128 + number is the shell's status of a signal.
    os._exit(128 + number)
