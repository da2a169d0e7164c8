"""Progress of long work: bars on a terminal, a line a minute in a log.

All bars of a run are made here. A thread redraws them, so a terminal shows that the program lives
while a program compiles or a file is read.
"""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator

from tqdm import tqdm

from gigpo_jax.core.errors import escape_controls

REDRAW_S = 1.0
LOG_LINE_S = 60.0  # longest silence of a log
DEFAULT_COLUMNS = 80
DEFAULT_ROWS = 24


def _has_size() -> bool:
    """Whether stderr is a terminal that reports its size."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns > 0
    except (OSError, ValueError):
        return False


class Bar:
    """The progress of one piece of work; see `show_progress`."""

    def __init__(self, title: str, total: int | None, unit: str, initial: int) -> None:
        """Shows the bar, if stderr is a terminal."""
        self.title = escape_controls(title)
        self._unit = unit
        self._total = total
        self._initial = initial
        self._done = initial
        self._start = time.monotonic()
        self._note = ""
        has_size = _has_size()
        self._bar = tqdm(
            desc=self.title,
            total=total,
            initial=initial,
            unit=f" {unit}",
            bar_format=self._form(),
            leave=False,
            # A terminal may report no size; tqdm would draw nothing on it.
            ncols=None if has_size else DEFAULT_COLUMNS,
            nrows=None if has_size else DEFAULT_ROWS,
            dynamic_ncols=has_size,
            disable=None,
        )
        if not self._bar.disable:
            # tqdm reads the clock of the system, which may be set while the bar is shown.
            self._bar._time = time.monotonic
            self._bar.start_t = self._bar.last_print_t = self._start

    def update(self, count: int = 1) -> None:
        """Counts work that is done."""
        self._done += count
        self._bar.update(count)

    def set_progress(self, done: int, total: int) -> None:
        """Sets the work that is done, and all of it."""
        self._total = total
        self._bar.total = total
        self._bar.bar_format = self._form()
        self.update(done - self._done)

    def note(self, text: str) -> None:
        """Shows a text behind the bar; "" for none."""
        self._note = text
        self._bar.set_postfix_str(text)

    def redraw(self) -> None:
        """Draws the bar again, with the time that has passed."""
        self._bar.refresh()

    def _form(self) -> str:
        """Returns tqdm's format: a bar if the work's size is known; a stage has no counter."""
        if not self._unit:
            return "{desc} [{elapsed}{postfix}]"
        if self._total is None:
            return "{desc}: {n_fmt}{unit} [{elapsed}, {rate_noinv_fmt}{postfix}]"
        return (
            "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} "
            "[{elapsed}<{remaining}, {rate_noinv_fmt}{postfix}]"
        )

    def line(self) -> str:
        """The progress as a line of a log."""
        seconds = time.monotonic() - self._start
        words = [f"{self.title}: {format_duration(seconds)}"]
        if self._unit:
            total = "" if self._total is None else f" of {self._total:,}"
            # Without the work of an earlier process, whose time is not counted either.
            rate = (self._done - self._initial) / max(seconds, 1e-9)
            words += [f"{self._done:,}{total} {self._unit}", f"{rate:.2g} {self._unit}/s"]
        return ", ".join(filter(None, [*words, self._note]))

    def close(self) -> None:
        """Removes the bar."""
        self._bar.close()


class _Display:
    """The shown bars, and the thread that redraws them."""

    def __init__(self) -> None:
        # The thread redraws while the program adds, removes and labels bars.
        self._lock = threading.Lock()
        self._bars: list[Bar] = []
        self._thread: threading.Thread | None = None
        self._idle_since = time.monotonic()
        self.last_line = time.monotonic()

    def add(self, bar: Bar) -> None:
        with self._lock:
            # A process that had nothing to do, such as a notebook, was not silent.
            if not self._bars and time.monotonic() - self._idle_since >= LOG_LINE_S:
                self.last_line = time.monotonic()
            self._bars.append(bar)
            if self._thread is None:
                # A daemon: it never ends, and must not keep the process alive.
                self._thread = threading.Thread(target=self._run, name="progress", daemon=True)
                self._thread.start()

    def remove(self, bar: Bar) -> None:
        with self._lock:
            self._bars.remove(bar)
            self._idle_since = time.monotonic()
            # Under the lock: the thread must not draw a bar again that was removed.
            bar.close()

    def note(self, text: str) -> None:
        with self._lock:
            # The innermost bar, if there is one.
            for bar in self._bars[-1:]:
                bar.note(text)

    def _run(self) -> None:
        while True:
            time.sleep(REDRAW_S)
            self.refresh()

    def refresh(self) -> None:
        """Redraws bars, and breaks the silence of a log."""
        with self._lock:
            for bar in self._bars:
                bar.redraw()
            is_silent = time.monotonic() - self.last_line >= LOG_LINE_S
            if not self._bars or not is_silent or sys.stderr.isatty():
                return
            # The innermost work says most.
            line = self._bars[-1].line()
        self.last_line = time.monotonic()
        # On several hosts each of them prints: one that hangs is the one that is silent.
        print(line, file=sys.stderr, flush=True)


_display = _Display()


@contextlib.contextmanager
def show_progress(
    title: str, *, total: int | None = None, unit: str, initial: int = 0
) -> Iterator[Bar]:
    """Shows a bar with a rate while the block runs.

    Args:
      title: Name of the work.
      total: Size of the work; None if it is not known.
      unit: Name of the things that `Bar.update` counts.
      initial: Work that an earlier process has done.
    """
    bar = Bar(title, total, unit, initial)
    _display.add(bar)
    try:
        yield bar
    finally:
        _display.remove(bar)


@contextlib.contextmanager
def show_stage(title: str) -> Iterator[None]:
    """Shows what the block does and for how long."""
    with show_progress(title, unit=""):
        yield


def note_compilation(is_running: bool) -> None:
    """Shows behind the innermost bar that a program compiles."""
    _display.note("compiling" if is_running else "")


def print_lines(text: str) -> None:
    """Prints lines above progress bars, with control characters escaped."""
    # A printed line breaks the silence too; no line of progress is due for a minute.
    _display.last_line = time.monotonic()
    # tqdm clears its bars, prints, and draws them below; print would write into a bar.
    tqdm.write(escape_controls(text))


def format_duration(seconds: float) -> str:
    """A time span for people, such as 45 s, 7 min or 3 h 20 min."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    # Rounded before the split: otherwise 3,599 s would read as 60 min.
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min"
