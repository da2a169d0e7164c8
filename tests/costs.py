"""What the tests cost: `pytest --costs=FILE` writes a row for each phase of each test.

CPU seconds depend little on what else the machine does, unlike wall time. Those of a process that a
test starts count when the test waits for its end.
"""

import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

COLUMNS = ("own_s", "processes_s", "compiling_s", "wall_s", "phase", "test")


class Costs:
    """Takes the time of phases; the first process collects them from its workers."""

    compiling = 0.0

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.last = self.used()
        self.rows: list[str] = []

    def used(self) -> list[float]:
        """CPU seconds of this process and of its children, and seconds of compiling and of wall."""
        times = os.times()
        children = times.children_user + times.children_system
        return [times.user + times.system, children, Costs.compiling, time.monotonic()]

    def add_row(self, values: list[float], *labels: str) -> None:
        self.rows.append("\t".join([*(f"{value:.3f}" for value in values), *labels]))

    def pytest_collection_finish(self) -> None:
        if "jax" in sys.modules:
            sys.modules["jax"].monitoring.register_event_duration_secs_listener(add_compile_time)
        self.last = self.used()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self):
        report = yield
        now = self.used()
        # xdist sends the attributes of a report to the first process.
        report.cost = [b - a for a, b in zip(self.last, now)]
        self.last = now
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.add_row(report.cost, report.when, report.nodeid)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self.add_row(node.workeroutput.get("cost", []), "worker", node.gateway.id)

    def pytest_sessionfinish(self) -> None:
        if hasattr(self.config, "workeroutput"):
            self.config.workeroutput["cost"] = [*self.used()[:3], 0.0]
            return
        self.add_row([*self.used()[:3], 0.0], "worker", "main")
        lines = ["\t".join(COLUMNS), *self.rows]
        Path(self.config.getoption("--costs")).write_text("\n".join(lines) + "\n")


def add_compile_time(event: str, seconds: float, **_: Any) -> None:
    if event == "/jax/core/compile/backend_compile_duration":
        Costs.compiling += seconds
