"""SIGTERM and Ctrl-C: during set-up they end the program, while a run trains they ask it to stop with a checkpoint."""

import asyncio
import signal
from collections.abc import Callable, Coroutine
from types import FrameType, TracebackType
from typing import Any, TypeVar

_T = TypeVar("_T")

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Interrupted(KeyboardInterrupt):
    """A signal came while there was nothing to save.

    Attributes:
      status: the exit status that the signal asks for (143 or 130).
    """

    def __init__(self, status: int) -> None:
        super().__init__(f"stopped by {signal.Signals(status - 128).name}")
        self.status = status


def raise_interrupted() -> None:
    """From now on the first SIGTERM or SIGINT raises `Interrupted`; the next one ends the process at once."""

    def handle(number: int, frame: FrameType | None) -> None:
        for each in SIGNALS:
            signal.signal(each, signal.SIG_DFL)
        raise Interrupted(128 + number)

    for number in SIGNALS:
        signal.signal(number, handle)


class Interrupts:
    """While open, SIGTERM and SIGINT do not end the process; the program reads `status` or gives a function to call.

    Attributes:
      status: the exit status that the signal asks for (143 or 130); 0 while none came.
    """

    def __init__(self, on_signal: Callable[[], object] | None = None) -> None:
        """Takes what is to be called when a signal comes; a second signal calls it again."""
        self.status = 0
        self._on_signal = on_signal

    def __enter__(self) -> "Interrupts":
        self._before = {number: signal.signal(number, self._handle) for number in SIGNALS}
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.status = 128 + number
        if self._on_signal is not None:
            self._on_signal()


def run_async(work: Coroutine[Any, Any, _T]) -> _T:
    """`asyncio.run`, cancelled by SIGTERM and SIGINT; then raises `Interrupted`."""
    interrupts = Interrupts(lambda: task.get_loop().call_soon_threadsafe(task.cancel))
    with interrupts, asyncio.Runner() as runner:
        task = runner.get_loop().create_task(work)
        try:
            return runner.get_loop().run_until_complete(task)
        except asyncio.CancelledError:
            if not interrupts.status:
                raise
    raise Interrupted(interrupts.status)
