"""Signals are noted, told, and given back."""

import asyncio
import os
import signal
import subprocess
import sys

import pytest

from gigpo_jax.run.coroutines import run_async
from gigpo_jax.run.interrupts import Interrupted, Interrupts


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_sets_the_status_and_calls_back(number: int, status: int):
    calls: list[int] = []
    previous_handler = signal.getsignal(number)
    with Interrupts(lambda: calls.append(1)) as interrupts:
        assert interrupts.status == 0
        os.kill(os.getpid(), number)
        assert interrupts.status == status
    assert calls == [1]
    assert signal.getsignal(number) is previous_handler


RAISES = """
import os, signal, sys, time
from gigpo_jax.run.interrupts import Interrupted, raise_interrupted
raise_interrupted()
try:
    os.kill(os.getpid(), int(sys.argv[1]))
except Interrupted as error:
    print(error, error.status)
os.kill(os.getpid(), int(sys.argv[1]))
time.sleep(60)
"""


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_the_first_signal_of_set_up_raises_and_the_second_ends_the_process(
    number: int, status: int
):
    done = subprocess.run(
        [sys.executable, "-c", RAISES, str(int(number))],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (
        -number,
        f"stopped by {number.name} {status}\n",
        "",
    )


class SignalledPolicy(asyncio.DefaultEventLoopPolicy):
    """Makes loops during which SIGTERM comes."""

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        os.kill(os.getpid(), signal.SIGTERM)
        return super().new_event_loop()


def test_a_signal_while_the_loop_is_made_cancels_the_work():
    async def work() -> None:
        await asyncio.sleep(60)

    asyncio.set_event_loop_policy(SignalledPolicy())
    try:
        with pytest.raises(Interrupted, match="stopped by SIGTERM"):
            run_async(work())
    finally:
        asyncio.set_event_loop_policy(None)
