"""Signals are noted, told, and given back."""

import os
import signal

import pytest

from gigpo_jax.run.interrupts import Interrupts


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_sets_the_status_and_calls_back(number: int, status: int):
    calls: list[int] = []
    before = signal.getsignal(number)
    with Interrupts(lambda: calls.append(1)) as interrupts:
        assert interrupts.status == 0
        os.kill(os.getpid(), number)
        assert interrupts.status == status
    assert calls == [1]
    assert signal.getsignal(number) is before
