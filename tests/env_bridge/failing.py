"""Environments that fail in every way the pool has to survive."""

import asyncio
import dataclasses
import os
import pathlib
import re
import subprocess
import sys
import time
import types
from typing import Any

from gigpo_jax.env_bridge.types import EnvError, Observation, StepResult, Task
from gigpo_jax.envs import registry
from gigpo_jax.envs.example.env import TreasureEnv
from gigpo_jax.errors import InputError


class FailingEnv(TreasureEnv):
    """The example, with actions that raise, sleep, or end the process; once it raised it is of no use."""

    _broken = False

    def reset(self, task: Task) -> Observation:
        observation = super().reset(task)
        return dataclasses.replace(observation, text="broken") if self._broken else observation

    def step(self, action: str) -> StepResult:
        verb, _, argument = action.partition(" ")
        if verb == "raise":
            self._broken = True
            raise KeyError(argument)
        if verb == "leave":
            sys.exit(0)
        if verb == "sleep":
            time.sleep(float(argument))
        if verb == "spin":  # C code that holds the interpreter lock for years
            re.match(r"(a|a)*c", "a" * 60)
        if verb == "start":  # a process of its own, which it does not end
            child = subprocess.Popen(["sleep", argument])
            result = super().step("")
            return dataclasses.replace(result, observation=dataclasses.replace(result.observation, text=str(child.pid)))
        if verb == "exit":
            os._exit(int(argument))
        if verb == "unreadable":
            result = super().step("")
            return dataclasses.replace(result, info={"value": _OnlyHere()})
        if verb == "secret":
            assert "VLLM_API_KEY" not in os.environ
        if verb == "print":
            print("noise " * 1000)
        return super().step(action)


class PatientEnv(FailingEnv):
    """Sleeps without holding up the other environments of its process."""

    async def step_async(self, action: str) -> StepResult:
        verb, _, argument = action.partition(" ")
        if verb == "sleep":
            await asyncio.sleep(float(argument))
            return self.step("")
        return self.step(action)


class DownEnv(TreasureEnv):
    """Needs a service that is not to be had; half of its episodes learn that later than the others."""

    def step(self, action: str) -> StepResult:
        raise EnvError("the service is down")

    async def step_async(self, action: str) -> StepResult:
        type(self)._steps += 1
        await asyncio.sleep(0.05 if self._steps % 2 else 1.0)
        return self.step(action)

    _steps = 0


class UnboundedEnv(TreasureEnv):
    """What it gives for closing a drawer is no finite number."""

    def step(self, action: str) -> StepResult:
        result = super().step(action)
        return dataclasses.replace(result, reward=float("nan")) if action.startswith("close") else result


class _OnlyHere:
    """Pickles well and does not unpickle."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _refuse, (os.getpid(),)


def _refuse(pid: int) -> None:
    raise RuntimeError(f"made in process {pid}")


def no_data(path: str = "/nowhere") -> TreasureEnv:
    raise InputError(f"env.options.path={path}: no such folder; make it with --out")


def crashes() -> TreasureEnv:
    os._exit(3)


def imports_jax() -> TreasureEnv:
    sys.modules["jax"] = types.ModuleType("jax")
    return TreasureEnv()


def while_file(path: str) -> TreasureEnv:
    """Can be built as long as a file is there."""
    if not pathlib.Path(path).exists():
        raise InputError(f"env.options.path={path}: gone")
    return FailingEnv()


def hangs() -> TreasureEnv:
    time.sleep(600)
    return TreasureEnv()


def _entry(function: str) -> registry.Environment:
    return dataclasses.replace(registry.ENVIRONMENTS["example"], build=f"{__name__}:{function}")


FAILING = _entry("FailingEnv")
DOWN = _entry("DownEnv")
FAILING_WITHOUT_EXPERT = dataclasses.replace(FAILING, expert=None)
