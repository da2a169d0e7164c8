"""SIGTERM and Ctrl-C end set-up, and ask a run that trains to stop with a checkpoint."""

import signal
from collections.abc import Callable
from types import FrameType, TracebackType

from gigpo_jax.core.early_interrupts import INTERRUPTS


class Interrupted(KeyboardInterrupt):
    """An interrupt came while there was nothing to save.

    Attributes:
      status: Exit status of the interrupt (143 or 130).
    """

    def __init__(self, status: int) -> None:
        super().__init__(f"stopped by {signal.Signals(status - 128).name}")
        self.status = status


def raise_interrupted() -> None:
    """Lets the first SIGTERM or SIGINT raise `Interrupted`, and the next one end the process."""

    def handle(number: int, frame: FrameType | None) -> None:
        # Restored first: the second one ends the process even if `Interrupted` is swallowed.
        for handled in INTERRUPTS:
            signal.signal(handled, signal.SIG_DFL)
        raise Interrupted(128 + number)

    for number in INTERRUPTS:
        signal.signal(number, handle)


class UpdateStopped(Exception):
    """An interrupt came during an update, and the update was dropped."""


class Interrupts:
    """A context in which SIGTERM and SIGINT only set `status`, or call a function of the program.

    Attributes:
      status: Exit status of the interrupt (143 or 130); 0 before an interrupt.
    """

    def __init__(self, on_interrupt: Callable[[], object] | None = None) -> None:
        """Takes a function to call at every interrupt."""
        self.status = 0
        self._on_interrupt = on_interrupt

    def __enter__(self) -> "Interrupts":
        self._previous_handlers = {
            number: signal.signal(number, self._handle) for number in INTERRUPTS
        }
        return self

    def __exit__(
        self, kind: type | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        # A flag and no exception: an exception could interrupt an update between the donation of
        # its arguments and the assignment of its result.
        self.status = 128 + number
        if self._on_interrupt is not None:
            self._on_interrupt()
