"""The env checker: plays an environment in worker processes, as a run does, and compares what has to be equal.

GiGPO depends on it: members of a group that take the same actions must see the same states, or anchor states mean
nothing. The workers bound every call and check every result (boundary.py); here stands what takes more than one call.
"""

import asyncio
import os
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from gigpo_jax.env_bridge.base import Expert
from gigpo_jax.env_bridge.pool import EnvPool, PooledEnv
from gigpo_jax.env_bridge.types import EnvError, Observation, StepResult, Task

_T = TypeVar("_T")

NASTY = (
    *("", " ", "\n", "\x00", "\ud800", "\u202egnihton", "\u6211 \U0001f600", "{0} {task} %s %(a)s"),
    *("None", "-1", "1e309", "..", "../../etc/passwd", "'; drop table", "[", "](", "search[", "click[]"),
    *("<action>look</action>", "go to " * 2000, "(" * 5000),
)


class EnvCheckError(AssertionError):
    """An environment broke a promise of `base.TextEnv`; the text says which, where and how, in one line."""


@dataclass(frozen=True)
class _Walk:
    """One episode: a task, the actions, and what they led to."""

    task: Task
    actions: tuple[str, ...]
    first: Observation
    results: tuple[StepResult, ...]

    @property
    def done(self) -> bool:
        return bool(self.results) and self.results[-1].done


def check_environment(
    build: str,
    options: Mapping[str, Any] | None = None,
    *,
    split: str,
    make_expert: Callable[[int], Expert] | None = None,
    tasks: int = 4,
    steps: int = 30,
    limit_s: float = 10.0,
) -> list[str]:
    """Plays an environment in several ways and compares.

    Args:
      build: "module:NAME" of what builds the environment.
      options: its keyword arguments.
      split: whose tasks are played.
      make_expert: seed -> a demonstrator; without one perhaps no episode reaches its end.
      tasks: how many tasks are played, spread over the split.
      steps: the most actions in an episode.
      limit_s: for a step, s; building, `tasks` and `reset` have 60 s.

    Returns:
      What was found to hold, a line each.

    Raises:
      EnvCheckError: the first broken promise.
      InputError: what the environment says of the options, the split or the data.
    """
    episodes = tasks * (1 if make_expert is None else 2)
    try:
        with (
            _pool(build, options, "1", episodes, limit_s) as one,
            _pool(build, options, "2", 1, limit_s) as other,
        ):
            chosen, held = _check_tasks(one, other, split, tasks)
            return held + asyncio.run(_check_episodes(one, other, chosen, steps, make_expert))
    except EnvError as err:
        raise EnvCheckError(str(err)) from err


def _pool(build: str, options: Mapping[str, Any] | None, hash_seed: str, envs: int, limit_s: float) -> EnvPool:
    environ = {"PYTHONHASHSEED": hash_seed}
    return EnvPool(build, options, workers=1, envs_per_worker=envs, step_timeout_s=limit_s, environ=environ)


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise EnvCheckError(message)


async def _call(what: str, call: Awaitable[_T]) -> _T:
    try:
        return await call
    except EnvError as err:
        raise EnvCheckError(f"{what}: {err}") from err


def _check_tasks(one: EnvPool, other: EnvPool, split: str, count: int) -> tuple[list[Task], list[str]]:
    """Some tasks of the split, and what holds of all."""
    tasks = one.tasks(split)
    _require(bool(tasks), f'tasks("{split}") is empty')
    ids = [task.id for task in tasks]
    again = "" if len(set(ids)) == len(ids) else max(ids, key=ids.count)
    _require(not again, f'tasks("{split}"): the id "{again}" is there more than once')
    _require(all(task.split == split for task in tasks), f'tasks("{split}"): a task has another split')
    _require(other.tasks(split) == tasks, f'tasks("{split}") differ in another process')
    chosen = [tasks[index * len(tasks) // count] for index in range(min(count, len(tasks)))]
    return chosen, [f"{len(tasks)} tasks with unique ids, the same in every process"]


async def _check_episodes(
    one: EnvPool, other: EnvPool, tasks: Sequence[Task], steps: int, make_expert: Callable[[int], Expert] | None
) -> list[str]:
    async with one.episode() as environment:
        walks = [await _random_walk(environment, task, steps) for task in tasks]
        held = [f"{len(walks)} random walks with {len(NASTY)} nasty actions: no exception, no malformed result"]
        if make_expert is not None:
            walks += [await _expert_walk(environment, make_expert, task, steps) for task in tasks]
            _require(
                any(walk.done for walk in walks), f"the expert finishes none of {len(tasks)} tasks in {steps} steps"
            )
        held.append(f"{sum(walk.done for walk in walks)} of {len(walks)} episodes came to their end, and reset follows")
        for walk in reversed(walks):
            await _reset(environment, walk.task)
            for action in walk.actions[: len(walk.actions) // 2]:  # an episode that is given up in the middle
                await _step(environment, walk.task, action)
            _compare(walk, await _replay(environment, walk), "when it is played again in the same object")
    held.append("the same task and actions give the same observations, whatever was played before")
    lent = [await one.acquire() for _ in walks]
    replays = await asyncio.gather(*(_replay(environment, walk) for environment, walk in zip(lent, walks)))
    for walk, replay in zip(walks, replays):
        _compare(walk, replay, "when others are played at the same time")
    held.append("episodes that are played at the same time do not touch each other")
    async with other.episode() as environment:
        for walk in walks:
            _compare(walk, await _replay(environment, walk), "in another process with another PYTHONHASHSEED")
        before = _resources(other.pids[0])
        for walk in walks:
            await _replay(environment, walk)
        after = _resources(other.pids[0])
    leaks = [name for name in after if after[name] > before[name]]
    _require(not leaks, f"after {len(walks)} more episodes the process has more {', '.join(leaks)}")
    held.append("another process with another hash seed sees the same, anchors included; episodes leave nothing open")
    return held


async def _reset(environment: PooledEnv, task: Task) -> Observation:
    observation = await _call(f"{task.id}: reset", environment.reset(task))
    _check_observation(f"{task.id}: reset", observation)
    return observation


async def _step(environment: PooledEnv, task: Task, action: str) -> StepResult:
    what = f"{task.id}: step({action[:60]!r})"
    result = await _call(what, environment.step(action))
    won, score = result.info["won"], result.info["score"]
    _require(won == (score == 1), f'{what}: info["won"] is {won} with info["score"] {score}; 1 means won, and only 1')
    _check_observation(what, result.observation)
    return result


def _check_observation(what: str, observation: Observation) -> None:
    _require(observation.anchor != "", f"{what}: the anchor state is empty, so all such states would be one")
    listed = observation.admissible or ()
    _require(len(set(listed)) == len(listed), f"{what}: an admissible action is listed twice")


async def _walk(
    environment: PooledEnv, task: Task, limit: int, choose: Callable[[Observation], str], observation: Observation
) -> _Walk:
    """Plays from the first observation on, with the actions of `choose`."""
    first, actions, results = observation, list[str](), list[StepResult]()
    while len(actions) < limit and not (results and results[-1].done):
        actions.append(choose(observation))
        results.append(await _step(environment, task, actions[-1]))
        observation = results[-1].observation
        _require(observation.task == first.task, f"{task.id}: the task's words change after {actions[-1][:60]!r}")
    return _Walk(task, tuple(actions), first, tuple(results))


async def _random_walk(environment: PooledEnv, task: Task, steps: int) -> _Walk:
    draw = random.Random(task.id)
    nasty = draw.sample(NASTY, len(NASTY))

    def choose(observation: Observation) -> str:
        if observation.admissible and (not nasty or draw.random() < 0.5):
            return draw.choice(observation.admissible)
        return nasty.pop() if nasty else draw.choice(NASTY)

    return await _walk(environment, task, steps + len(NASTY), choose, await _reset(environment, task))


async def _expert_walk(environment: PooledEnv, make_expert: Callable[[int], Expert], task: Task, steps: int) -> _Walk:
    first = await _reset(environment, task)
    expert = make_expert(0)

    def choose(observation: Observation) -> str:
        try:
            action = expert.act(observation)
        except Exception as err:  # the boundary: an expert may raise anything
            raise EnvCheckError(f"{task.id}: the expert raised {type(err).__name__}: {err}") from err
        _require(isinstance(action, str), f"{task.id}: the expert's action is a {type(action).__name__}, not a str")
        return action

    return await _walk(environment, task, steps, choose, first)


async def _replay(environment: PooledEnv, walk: _Walk) -> _Walk:
    first = await _reset(environment, walk.task)
    results = [await _step(environment, walk.task, action) for action in walk.actions]
    return _Walk(walk.task, walk.actions, first, tuple(results))


def _compare(expected: _Walk, seen: _Walk, when: str) -> None:
    _difference(expected.first, seen.first, f"{expected.task.id}: reset", when)
    for number, (one, other) in enumerate(zip(expected.results, seen.results, strict=True)):
        what = f"{expected.task.id}: step {number + 1}, {expected.actions[number][:60]!r}"
        _difference(one.observation, other.observation, what, when)
        rest = (one.reward, one.done, one.info), (other.reward, other.done, other.info)
        _require(rest[0] == rest[1], f"{what}: {rest[1]} instead of {rest[0]} {when}")


def _difference(one: Observation, other: Observation, what: str, when: str) -> None:
    for name in ("text", "anchor", "admissible", "task"):
        before, after = getattr(one, name), getattr(other, name)
        _require(before == after, f"{what}: {name} is {after!r:.300} instead of {before!r:.300} {when}")
    counts = len(other.images), len(one.images)
    _require(counts[0] == counts[1], f"{what}: {counts[0]} images instead of {counts[1]} {when}")
    for number, (image, again) in enumerate(zip(one.images, other.images)):
        _require(np.array_equal(image, again), f"{what}: image {number} differs {when}")


def _resources(pid: int) -> dict[str, int]:
    """How many threads and open files a process has (Linux only)."""
    folders = {"threads": f"/proc/{pid}/task", "open files": f"/proc/{pid}/fd"}
    return {name: len(os.listdir(folder)) for name, folder in folders.items() if os.path.isdir(folder)}
