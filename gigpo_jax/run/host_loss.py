"""The end of a host whose run lost another one: one line, and status 1."""

import contextlib
import ctypes
import os
import sys
import threading
from collections.abc import Callable
from typing import NoReturn

from gigpo_jax.run.progress import print_lines

_leaving = threading.Lock()
_handlers: list[object] = []  # C++ keeps no reference to what it calls


def describe_loss(host: int, lost_host: int) -> str:
    """Message of a host that stops because another one is lost."""
    return (
        f"host {host} stopped: no sign of life from host {lost_host}; the same command continues "
        "after the newest checkpoint"
    )


def leave_run(status: int, line: str = "") -> NoReturn:
    """Ends the process as it is, with the line of the first thread that calls it."""
    # Never released.
    _leaving.acquire()
    try:
        if line:
            print_lines(line)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        # Not sys.exit: the exit handlers of jax would wait for hosts that have gone.
        os._exit(status)


def end_with_coordinator(host: int) -> Callable[..., None]:
    """Returns jax's callback for a lost coordinator, in place of an abort with a stack trace.

    jaxlib 0.10.2 cannot convert the argument of callbacks to Python, and the std::bad_cast that it
    throws ends in the terminate handler of C++, which is replaced here.

    Args:
      host: Number of this host.
    """
    library = "libc++.1.dylib" if sys.platform == "darwin" else "libstdc++.so.6"
    handler_type = ctypes.CFUNCTYPE(None)

    def end(*_: object) -> None:
        leave_run(1, describe_loss(host, 0))

    with contextlib.suppress(OSError, AttributeError):
        cxx = ctypes.CDLL(library)
        cxx.__cxa_current_exception_type.restype = ctypes.POINTER(ctypes.c_char_p)
        cxx._ZSt13set_terminatePFvvE.restype = handler_type

        def terminate() -> None:
            # A std::type_info: its second word is the name.
            exception = cxx.__cxa_current_exception_type()
            if exception and exception[1] == b"St8bad_cast":
                end()
            previous_handler()

        _handlers.append(handler_type(terminate))
        previous_handler = cxx._ZSt13set_terminatePFvvE(_handlers[-1])
    return end
