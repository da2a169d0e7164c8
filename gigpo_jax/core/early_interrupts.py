"""Interrupts (SIGTERM, SIGINT) while a command starts: one line, and their exit status."""

import os
import signal
import socket
import sys
import threading
import time
from types import FrameType
from typing import NoReturn

INTERRUPTS = (signal.SIGTERM, signal.SIGINT)
STATUSES = tuple(128 + number for number in INTERRUPTS)  # exit status of each, as in shells
REPEAT_S = 0.5  # time after which another interrupt is a second one


def end_at_interrupts() -> None:
    """Lets SIGTERM and SIGINT end the process at once.

    For the seconds in which a command imports its modules, when there is nothing to clean up. An
    exception would pass through imports of other packages there; some swallow it, others turn it
    into an error of their own.
    """
    for number in INTERRUPTS:
        signal.signal(number, _end)


def end_at_second_interrupt() -> None:
    """Ends the process at a second interrupt, whatever it computes, by a thread that reads them.

    The main thread handles none while it waits inside of jax.
    """
    receiver, sender = socket.socketpair()
    sender.setblocking(False)
    signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)

    def watch() -> None:
        first_s = 0.0
        # The sender is kept open as long as the thread lives.
        while sender.fileno() >= 0:
            (number,) = receiver.recv(1)
            if number not in INTERRUPTS:
                continue
            # `timeout` and service managers may send one interrupt twice.
            if first_s and time.monotonic() - first_s > REPEAT_S:
                _end(number, None)
            first_s = first_s or time.monotonic()

    threading.Thread(target=watch, name="interrupts", daemon=True).start()


def leave(status: int) -> NoReturn:
    """Ends the process with the exit status of an interrupt, without waiting for other threads.

    Threads that wait for the device would abort the process with messages of C++ if Python's own
    exit ended them.
    """
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status)


def ends_at_interrupts() -> bool:
    """Whether `end_at_interrupts` is in effect."""
    return signal.getsignal(signal.SIGINT) is _end


def _end(number: int, frame: FrameType | None) -> None:
    # A progress bar may stand in the line of the cursor.
    clear_line = "\r\x1b[K" if sys.stderr.isatty() else ""
    message = f"{clear_line}gigpo_jax: stopped by {signal.Signals(number).name}\n"
    # Not print: a print may be under way, and a buffered stream cannot be entered twice.
    os.write(2, message.encode())
    # Not sys.exit, which raises an exception; 128 + number is the shell's status.
    os._exit(128 + number)
