"""A run shows what it does: bars on a terminal, lines in a log."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gigpo_jax.run import progress, tracking
from tests.runs import LIMIT_S, command, flags

__all__ = ["flags"]

SILENCE_S = 60  # ten are promised; machines of tests are busy
STAGES = (
    "loading",
    "reading the tasks",
    "starting the environments",
    "compiling the engine's programs",
    "panel, sampled",
    "rollout 1",
    "update 1",
)


def read_terminal(words: list[str], columns: int = 120) -> tuple[str, float]:
    """Runs a command on a terminal of its own: the output, and the longest silence, s."""
    master, terminal = pty.openpty()
    rows_and_columns = struct.pack("HHHH", 40 if columns else 0, columns, 0, 0)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, rows_and_columns)
    process = subprocess.Popen(words, stdin=terminal, stdout=terminal, stderr=terminal)
    os.close(terminal)
    output = b""
    silence = 0.0
    last = time.monotonic()
    end = last + LIMIT_S
    while time.monotonic() < end:
        ready, _, _ = select.select([master], [], [], 1.0)
        try:
            piece = os.read(master, 65536) if ready else b""
        except OSError:  # the other end is closed
            break
        if piece:
            silence = max(silence, time.monotonic() - last)
            last = time.monotonic()
            output += piece
    os.close(master)
    assert process.wait(LIMIT_S) == 0, output.decode()
    return output.decode(), silence


@pytest.mark.slow
def test_a_terminal_sees_every_stage_and_rates(flags: list[str], tmp_path: Path) -> None:
    words = command(tmp_path / "run", "train", *flags, "--config.train.iterations=2")
    output, silence = read_terminal(words)
    assert [stage for stage in STAGES if stage not in output] == []
    # Replaced groups add episodes, so the bar of a rollout has no total here.
    assert re.search(r"rollout 1: .*\d+ ?episodes", output)
    assert re.search(r"update 1: +\d+%\|.*tokens/s", output)
    assert "compiling]" in output
    assert silence < SILENCE_S


def test_a_terminal_without_a_size_gets_bars_too() -> None:
    program = (
        "from gigpo_jax.run import progress, tracking\n"
        "for _ in tracking.track(range(3), 'update 1', unit='minibatches'):\n"
        "    progress._display.refresh()\n"
    )
    output, _ = read_terminal([sys.executable, "-c", program], columns=0)
    assert "update 1:  67%|" in output


@pytest.fixture
def silent_display(monkeypatch: pytest.MonkeyPatch) -> Iterator[progress._Display]:
    """A display that has printed no line for more than a minute, without its thread."""
    display = progress._Display()
    display._thread = threading.current_thread()
    display.last_line -= progress.LOG_LINE_S
    monkeypatch.setattr(progress, "_display", display)
    yield display
    assert not display._bars


def test_a_log_gets_a_line_after_a_minute_of_silence(
    silent_display: progress._Display, capsys: pytest.CaptureFixture[str]
) -> None:
    with (
        progress.show_stage("outer"),
        progress.show_progress(
            "panel, \x1b[1msampled", total=1280, unit="episodes", initial=1000
        ) as bar,
    ):
        bar._start -= 8
        bar.update(24)
        silent_display.refresh()
        silent_display.refresh()  # the line has just ended the silence
    line = capsys.readouterr().err
    assert re.fullmatch(
        # The rate is that of this process: 24 in 8 s.
        r"panel, \\x1b\[1msampled: 8 s, 1,024 of 1,280 episodes, (3|2\.9) episodes/s\n",
        line,
    )


def test_a_stage_of_a_log_says_that_a_program_compiles(
    silent_display: progress._Display, capsys: pytest.CaptureFixture[str]
) -> None:
    with progress.show_stage("loading models/x"):
        progress.note_compilation(True)
        silent_display.refresh()
        progress.note_compilation(False)
        silent_display.last_line -= progress.LOG_LINE_S
        silent_display.refresh()
    assert capsys.readouterr().err == "loading models/x: 0 s, compiling\nloading models/x: 0 s\n"


def test_idle_time_before_the_work_is_no_silence(
    silent_display: progress._Display, capsys: pytest.CaptureFixture[str]
) -> None:
    """A notebook that starts a run after an hour gets no line in its first second."""
    silent_display._idle_since -= progress.LOG_LINE_S
    with progress.show_stage("starting"):
        silent_display.refresh()
    assert capsys.readouterr().err == ""


def test_a_printed_line_ends_the_silence(
    silent_display: progress._Display, capsys: pytest.CaptureFixture[str]
) -> None:
    with progress.show_stage("loading"):
        progress.print_lines("iteration 1")
        silent_display.refresh()
    assert capsys.readouterr() == ("iteration 1\n", "")


def test_the_thread_breaks_the_silence_of_a_log() -> None:
    program = (
        "import time\n"
        "from gigpo_jax.run import progress\n"
        "progress.LOG_LINE_S = 0\n"
        "with progress.show_progress('rollout 1', total=3, unit='episodes') as bar:\n"
        "    bar.set_progress(2, 3)\n"
        "    time.sleep(progress.REDRAW_S + 2)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert re.search(r"rollout 1: \d s, 2 of 3 episodes, \S+ episodes/s\n", done.stderr)


def test_tracked_items_come_in_order() -> None:
    assert list(tracking.track([3, 1, 2], "numbers", unit="numbers")) == [3, 1, 2]
    assert not progress._display._bars
