"""SIGTERM and Ctrl-C as a wish to stop at the next good moment, with a checkpoint."""

import signal
from collections.abc import Callable
from types import FrameType, TracebackType


class Interrupts:
    """While open, SIGTERM and SIGINT end nothing by themselves; the program looks at `status`, or is told.

    Attributes:
      status: the exit status that the signal asks for (143 or 130); 0 while none came.
    """

    def __init__(self, on_signal: Callable[[], object] | None = None) -> None:
        """Takes what is to be called when a signal comes; a second signal calls it again."""
        self.status = 0
        self._on_signal = on_signal

    def __enter__(self) -> "Interrupts":
        numbers = (signal.SIGTERM, signal.SIGINT)
        self._before = {number: signal.signal(number, self._handle) for number in numbers}
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.status = 128 + number
        if self._on_signal is not None:
            self._on_signal()
