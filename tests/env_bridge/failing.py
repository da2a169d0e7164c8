"""Environments that fail in every way the pool has to survive."""

import asyncio
import contextlib
import dataclasses
import math
import os
import pathlib
import re
import stat
import subprocess
import sys
import time
import types
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gigpo_jax.core.errors import InputError
from gigpo_jax.env_bridge.types import IMAGE, EnvError, Observation, StepResult, Task
from gigpo_jax.envs import registry
from gigpo_jax.envs.entry_types import Environment
from gigpo_jax.envs.example.env import TreasureEnv
from gigpo_jax.envs.harness import harness_entry


class FailingEnv(TreasureEnv):
    """The example, with actions that raise, sleep, or end the process.

    After an exception its state is wrong.
    """

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
            return dataclasses.replace(
                result, observation=dataclasses.replace(result.observation, text=str(child.pid))
            )
        if verb == "exit":
            os._exit(int(argument))
        if verb == "write":
            write_to_sockets(bytes.fromhex(argument))
            time.sleep(2)
        if verb == "secret":
            assert not {"GIGPO_API_KEY", "VLLM_API_KEY"} & set(os.environ)
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


class EscapingEnv(TreasureEnv):
    """Raises texts that would clear a terminal, each with another number."""

    def step(self, action: str) -> StepResult:
        raise ValueError(f"episode {time.monotonic_ns()} of {action!r}\x1b[2J\u202e\nis odd")


class DownEnv(TreasureEnv):
    """Needs a service that is down; half of its episodes notice it later than the others."""

    def step(self, action: str) -> StepResult:
        raise EnvError("the service is down")

    async def step_async(self, action: str) -> StepResult:
        type(self)._steps += 1
        await asyncio.sleep(0.05 if self._steps % 2 else 1.0)
        return self.step(action)

    _steps = 0


def _with(**fields: Any) -> Callable[[StepResult], Any]:
    return lambda result: dataclasses.replace(result, **fields)


def _with_info(**fields: Any) -> Callable[[StepResult], Any]:
    return lambda result: dataclasses.replace(result, info={**result.info, **fields})


def _seen(**fields: Any) -> Callable[[StepResult], Any]:
    return lambda result: dataclasses.replace(
        result, observation=dataclasses.replace(result.observation, **fields)
    )


PICTURE = np.arange(28 * 56 * 3, dtype=np.uint8).reshape(28, 56, 3)


def _pictures(images: Any) -> Callable[[StepResult], Any]:
    return _seen(text=f"You see {IMAGE}.", images=images)


class _Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no words")


# Field and fault -> function that spoils a valid result.
MALFORMED: dict[str, Callable[[StepResult], Any]] = {
    "result None": lambda result: None,
    "result tuple": dataclasses.astuple,
    "reward text": _with(reward="1"),
    "reward None": _with(reward=None),
    "reward huge integer": _with(reward=10**400),
    "reward longer than Python prints": _with(reward=10**5000),
    "reward nan": _with(reward=float("nan")),
    "reward inf": _with(reward=float("-inf")),
    "reward too large": _with(reward=1e300),
    "reward complex": _with(reward=1j),
    "reward array": _with(reward=np.ones(2)),
    "done text": _with(done="no"),
    "done None": _with(done=None),
    "done array": _with(done=np.zeros(3, bool)),
    "info None": _with(info=None),
    "info list": _with(info=[("won", True)]),
    "won missing": lambda result: dataclasses.replace(result, info={"score": 0.0}),
    "won number": _with_info(won=1),
    "score nan": _with_info(score=float("nan")),
    "score too large": _with_info(score=1.5),
    "score None": _with_info(score=None),
    "score unprintable": _with_info(score=_Unprintable()),
    "regret negative": _with_info(regret=-1.0),
    "regret infinite": _with_info(regret=math.inf),
    "regret text": _with_info(regret="none"),
    "observation None": _with(observation=None),
    "observation text": _with(observation="You are here."),
    "observation of 100 MB": _seen(text="x" * 10**8),
    "observation of many actions": _seen(admissible=("look around",) * 10**5),
    "text None": _seen(text=None),
    "text bytes": _seen(text=b"You are here."),
    "anchor None": _seen(anchor=None),
    "task None": _seen(task=None),
    "admissible text": _seen(admissible="look"),
    "admissible list": _seen(admissible=["look"]),
    "admissible of None": _seen(admissible=("look", None)),
    "images list": _pictures([PICTURE]),
    "images array": _pictures(PICTURE),
    "images of None": _pictures((None,)),
    "images of lists": _pictures((PICTURE.tolist(),)),
    "images of floats": _pictures((PICTURE / 255,)),
    "images without channels": _pictures((PICTURE[..., 0],)),
    "images of four channels": _pictures((np.zeros((28, 28, 4), np.uint8),)),
    "images without pixels": _pictures((np.zeros((0, 28, 3), np.uint8),)),
    "images of 12 GB": _pictures((np.broadcast_to(PICTURE[0, 0], (10**5, 4 * 10**4, 3)),)),
    "images without a place": _pictures((PICTURE, PICTURE)),
}


class MalformedEnv(TreasureEnv):
    """The example; actions of `MALFORMED` spoil the result, `task.data` the first observation."""

    def reset(self, task: Task) -> Observation:
        observation: Any = super().reset(task)
        if task.data == "observation":
            return None  # type: ignore[return-value]
        if task.data == "text":
            return dataclasses.replace(observation, text=None)  # type: ignore[arg-type]
        return observation

    def step(self, action: str) -> StepResult:
        result = super().step(action)
        return MALFORMED[action](result) if action in MALFORMED else result


class MalformedLater(MalformedEnv):
    """The same, for steps that wait."""

    async def step_async(self, action: str) -> StepResult:
        await asyncio.sleep(0)
        return self.step(action)


class DriftingEnv(TreasureEnv):
    """What it answers depends on the number of episodes before."""

    episodes = 0

    def reset(self, task: Task) -> Observation:
        DriftingEnv.episodes += 1
        return super().reset(task)

    def step(self, action: str) -> StepResult:
        result = super().step(action)
        text = f"{result.observation.text} {self.episodes}"
        observation = dataclasses.replace(result.observation, text=text)
        return dataclasses.replace(result, observation=observation)


class NanOnClose(TreasureEnv):
    """The reward for closing a drawer is not a number."""

    def step(self, action: str) -> StepResult:
        result = super().step(action)
        return (
            dataclasses.replace(result, reward=float("nan"))
            if action.startswith("close")
            else result
        )


def write_to_sockets(data: bytes) -> None:
    """Writes to every socket of this process, that to the pool included."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the descriptor of the listing is closed
            if stat.S_ISSOCK(os.stat(int(name)).st_mode):
                os.write(int(name), data)


class _OnlyHere:
    """Pickles well; only the process that made it can unpickle it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _refuse, (os.getpid(),)


def _refuse(pid: int) -> None:
    raise RuntimeError(f"made in process {pid}")


class _OwnText(_OnlyHere, str):
    def __str__(self) -> str:
        return self  # not a plain str either


class _OwnNumber(_OnlyHere, float):
    pass


class _OwnTuple(_OnlyHere, tuple[str, ...]):
    pass


class _OwnArray(_OnlyHere, np.ndarray):
    pass


class _OwnTask(_OnlyHere, Task):
    pass


class _OwnObservation(_OnlyHere, Observation):
    pass


class _OwnResult(_OnlyHere, StepResult):
    pass


class OwnTypesEnv(TreasureEnv):
    """All that it returns is of its own types, derived from the types of the bridge."""

    def tasks(self, split: str) -> Sequence[Task]:
        tasks = super().tasks(split)
        return [
            _OwnTask(*(_OwnText(field) for field in dataclasses.astuple(task))) for task in tasks
        ]

    def _observe(self, text: str) -> Observation:
        observation = super()._observe(text)
        actions = _OwnTuple(map(_OwnText, observation.admissible or ()))
        images = (PICTURE.view(_OwnArray), PICTURE[:, ::2])
        return _OwnObservation(
            _OwnText(f"{observation.text}{IMAGE}{IMAGE}"),
            _OwnText(observation.anchor),
            actions,
            _OwnText(observation.task),
            images,
        )

    def step(self, action: str) -> StepResult:
        result = super().step(action)
        info = types.MappingProxyType(
            {"won": np.False_, "score": _OwnNumber(0.5), "regret": _OwnNumber(1.0)}
        )
        return _OwnResult(result.observation, _OwnNumber(result.reward), result.done, info)


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


def _entry(function: str) -> Environment:
    return dataclasses.replace(registry.ENVIRONMENTS["example"], build=f"{__name__}:{function}")


FAILING = _entry("FailingEnv")
DOWN = _entry("DownEnv")
ESCAPING = _entry("EscapingEnv")
FAILING_WITHOUT_EXPERT = dataclasses.replace(FAILING, expert=None)
HARNESS = harness_entry(f"{__name__}:FailingEnv", max_steps=4)
