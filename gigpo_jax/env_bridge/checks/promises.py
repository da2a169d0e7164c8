"""What an environment promises (`base.TextEnv`), checked in the process that plays it; conformance.py puts it together.

GiGPO depends on it. Two members of a group that take the same actions must see the same states, or anchor states mean
nothing; a hash-seeded order in an observation makes them differ from one worker to the next.
"""

import math
import os
import pathlib
import pickle
import random
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

from gigpo_jax.env_bridge.base import Expert, TextEnv
from gigpo_jax.env_bridge.checks.confined import Watch, require
from gigpo_jax.env_bridge.types import Observation, StepResult, Task

NASTY = (
    *("", " ", "\n", "\x00", "\ud800", "\u202egnihton", "\u6211 \U0001f600", "{0} {task} %s %(a)s"),
    *("None", "-1", "1e309", "..", "../../etc/passwd", "'; drop table", "[", "](", "search[", "click[]"),
    *("<action>look</action>", "go to " * 2000, "(" * 5000),
)


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


def check_here(
    watch: Watch,
    make: Callable[[], TextEnv],
    make_expert: Callable[[int], Expert] | None,
    split: str,
    tasks: int,
    steps: int,
    seed: int,
) -> tuple[list[str], bytes]:
    """Plays an environment in several ways in one process and compares; arguments as for `check_environment`.

    Returns:
      What was found to hold, a line each; and what was played, for `check_afresh`.
    """
    held = []
    environment = _make(make, watch)
    everything = _check_tasks(make, environment, split, watch)
    held.append(f"{len(everything)} tasks with unique ids, in the same order every time, and they pickle")
    chosen = [everything[index * len(everything) // tasks] for index in range(min(tasks, len(everything)))]
    walks = [_random_walk(environment, task, steps, random.Random(f"{seed} {task.id}"), watch) for task in chosen]
    held.append(f"{len(walks)} random walks, with {len(NASTY)} nasty actions among others: no exception, no wrong type")
    if make_expert is not None:
        walks += [_expert_walk(environment, partial(make_expert, seed), task, steps, watch) for task in chosen]
        require(any(walk.done for walk in walks), f"the expert finishes none of {len(chosen)} tasks in {steps} steps")
    ended = sum(walk.done for walk in walks)
    held.append(f"{ended} of {len(walks)} episodes came to their end" + (", and reset follows" if ended else ""))
    for walk in reversed(walks):
        observation = _reset(environment, walk.task, watch)
        for action in (observation.admissible or ())[:1]:  # an episode that is given up in the middle
            _step(environment, walk.task, action, watch)
        _compare(walk, _replay(environment, walk, watch), "when it is played again in the same object")
        _compare(walk, _replay(_make(make, watch), walk, watch), "when it is played in a new object")
    held.append("the same task and actions give the same observations, whatever was played before")
    _check_independence(make, walks, watch)
    held.append("members of a group do not touch each other")
    for count in ("the first", "the second"):
        watch.call(f"close, {count} time,", environment.close)
    return held, pickle.dumps(walks)


def check_afresh(watch: Watch, make: Callable[[], TextEnv], played: bytes, hash_seed: str) -> None:
    """Plays what was played before in a process with another hash seed, compares, and counts what closing leaves."""
    at_first = _resources()
    walks: list[_Walk] = pickle.loads(played)
    when = f"in a fresh interpreter with PYTHONHASHSEED={hash_seed}"
    _play_all(make, walks, when, watch)
    before = _resources()
    _play_all(make, walks[:1], when, watch)
    after = _resources()
    require("jax" not in sys.modules, "the environment imports jax; environment workers must not")
    leaks = [name for name in after if after[name] > before[name]]
    require(not leaks, f"after close there are more {', '.join(leaks)} than before make")
    started = after.get("processes", 0) - at_first.get("processes", 0)  # imports may keep files and threads, but these
    require(started <= 0, f"after every close there are {started} more processes than before the first make")


def _make(make: Callable[[], TextEnv], watch: Watch) -> TextEnv:
    return cast(TextEnv, watch.build("make", make))


def _tasks(environment: TextEnv, split: str, watch: Watch) -> list[Task]:
    return cast(list[Task], watch.build(f'tasks("{split}")', lambda: list(environment.tasks(split))))


def _check_tasks(make: Callable[[], TextEnv], environment: TextEnv, split: str, watch: Watch) -> Sequence[Task]:
    tasks = _tasks(environment, split, watch)
    require(bool(tasks), f'tasks("{split}") is empty')
    for task in tasks:
        require(isinstance(task, Task), f'tasks("{split}") holds a {type(task).__name__}, not a types.Task')
        require(all(isinstance(text, str) for text in (task.id, task.type)), f"{task}: its id or type is not text")
        require(task.split == split, f'{task}: its split is not "{split}"')
    ids = [task.id for task in tasks]
    require(len(set(ids)) == len(ids), f'tasks("{split}"): the id "{max(ids, key=ids.count)}" is there more than once')
    for other, how in ((environment, "the second time"), (_make(make, watch), "in a new object")):
        require(_tasks(other, split, watch) == tasks, f'tasks("{split}") are others {how}')
    require(pickle.loads(pickle.dumps(tasks)) == tasks, "a task differs after pickling")
    return tasks


def _reset(environment: TextEnv, task: Task, watch: Watch) -> Observation:
    observation = watch.call(f"{task.id}: reset", lambda: environment.reset(task))
    _check_observation(f"{task.id}: reset", observation)
    return observation


def _step(environment: TextEnv, task: Task, action: str, watch: Watch) -> StepResult:
    what = f"{task.id}: step({action[:60]!r})"
    result = watch.call(what, lambda: environment.step(action))
    require(isinstance(result, StepResult), f"{what} returned a {type(result).__name__}, not a types.StepResult")
    _check_observation(what, result.observation)
    require(isinstance(result.info, Mapping), f"{what}: info is a {type(result.info).__name__}, not a mapping")
    reward, score = result.reward, result.info.get("score")
    require(isinstance(reward, (int, float)) and math.isfinite(reward), f"{what}: reward {reward!r} is no number")
    require(isinstance(result.done, bool), f"{what}: done {result.done!r} is no bool")
    require(isinstance(result.info.get("won"), bool), f'{what}: info["won"] has to be there, a bool')
    require(
        isinstance(score, (int, float)) and 0 <= score <= 1,
        f'{what}: info["score"] has to be there, a number in [0, 1]',
    )
    won = result.info["won"]
    require(won == (score == 1), f'{what}: info["won"] is {won} with info["score"] {score}; 1 means won, and only 1')
    again = watch.call(f"{what}: pickling the result", lambda: pickle.loads(pickle.dumps(result)))
    require(again == result, f"{what}: the result differs after pickling")
    return result


def _check_observation(what: str, observation: Observation) -> None:
    require(isinstance(observation, Observation), f"{what}: a {type(observation).__name__}, not a types.Observation")
    for name in ("text", "anchor", "task"):
        require(isinstance(getattr(observation, name), str), f"{what}: {name} is not text")
    require(observation.anchor != "", f"{what}: the anchor state is empty, so all such states would be one")
    admissible = observation.admissible
    if admissible is not None:
        require(isinstance(admissible, tuple), f"{what}: admissible is a {type(admissible).__name__}, not a tuple")
        require(all(isinstance(action, str) for action in admissible), f"{what}: an admissible action is not text")
        require(len(set(admissible)) == len(admissible), f"{what}: an admissible action is listed twice")


def _random_walk(environment: TextEnv, task: Task, steps: int, draw: random.Random, watch: Watch) -> _Walk:
    """Admissible actions and nasty ones, mixed."""
    first = observation = _reset(environment, task, watch)
    actions: list[str] = []
    results: list[StepResult] = []
    nasty = list(NASTY)
    draw.shuffle(nasty)
    while len(actions) < steps + len(NASTY) and not (results and results[-1].done):
        if observation.admissible and (not nasty or draw.random() < 0.5):
            actions.append(draw.choice(observation.admissible))
        else:
            actions.append(nasty.pop() if nasty else draw.choice(NASTY))
        results.append(_step(environment, task, actions[-1], watch))
        observation = results[-1].observation
        require(observation.task == first.task, f"{task.id}: the task's words change after {actions[-1][:60]!r}")
    return _Walk(task, tuple(actions), first, tuple(results))


def _expert_walk(
    environment: TextEnv, make_expert: Callable[[], Expert], task: Task, steps: int, watch: Watch
) -> _Walk:
    first = observation = _reset(environment, task, watch)
    expert = watch.build("make_expert", make_expert)
    actions: list[str] = []
    results: list[StepResult] = []
    while len(actions) < steps and not (results and results[-1].done):
        what = f"{task.id}: the expert's act before step {len(actions) + 1}"
        actions.append(watch.call(what, partial(expert.act, observation)))
        require(isinstance(actions[-1], str), f"{what} returned a {type(actions[-1]).__name__}, not text")
        results.append(_step(environment, task, actions[-1], watch))
        observation = results[-1].observation
    return _Walk(task, tuple(actions), first, tuple(results))


def _replay(environment: TextEnv, walk: _Walk, watch: Watch) -> _Walk:
    first = _reset(environment, walk.task, watch)
    results = tuple(_step(environment, walk.task, action, watch) for action in walk.actions)
    return _Walk(walk.task, walk.actions, first, results)


def _compare(expected: _Walk, seen: _Walk, when: str) -> None:
    """Two plays of the same actions have to be equal in every field."""
    _difference(expected.first, seen.first, f"{expected.task.id}: reset", when)
    for number, (one, other) in enumerate(zip(expected.results, seen.results, strict=True)):
        what = f"{expected.task.id}: step {number + 1}, {expected.actions[number][:60]!r}"
        _difference(one.observation, other.observation, what, when)
        rest = (one.reward, one.done, dict(one.info)), (other.reward, other.done, dict(other.info))
        require(rest[0] == rest[1], f"{what}: {rest[1]} instead of {rest[0]} {when}")


def _difference(one: Observation, other: Observation, what: str, when: str) -> None:
    for name in ("text", "anchor", "admissible", "task"):
        before, after = getattr(one, name), getattr(other, name)
        require(before == after, f"{what}: {name} is {after!r:.300} instead of {before!r:.300} {when}")


def _check_independence(make: Callable[[], TextEnv], walks: Sequence[_Walk], watch: Watch) -> None:
    """All walks at once, one object each, a step in turn."""
    environments = [_make(make, watch) for _ in walks]
    firsts = [_reset(environment, walk.task, watch) for environment, walk in zip(environments, walks)]
    results: list[list[StepResult]] = [[] for _ in walks]
    for number in range(max(len(walk.actions) for walk in walks)):
        for index, walk in enumerate(walks):
            if number < len(walk.actions):
                results[index].append(_step(environments[index], walk.task, walk.actions[number], watch))
    for walk, first, seen in zip(walks, firsts, results):
        _compare(walk, _Walk(walk.task, walk.actions, first, tuple(seen)), "when others are played at the same time")
    for environment in environments:
        watch.call("close", environment.close)


def _play_all(make: Callable[[], TextEnv], walks: Sequence[_Walk], when: str, watch: Watch) -> None:
    environment = _make(make, watch)
    for walk in walks:
        _compare(walk, _replay(environment, walk, watch), when)
    watch.call("close", environment.close)


def _resources() -> dict[str, int]:
    """How many threads, open files and child processes there are (files and children on Linux only)."""
    counts = {"threads": threading.active_count()}
    if os.path.isdir("/proc/self/fd"):
        counts["open files"] = len(os.listdir("/proc/self/fd"))
        children = pathlib.Path("/proc/self/task").glob("*/children")
        counts["processes"] = sum(len(path.read_text().split()) for path in children)
    return counts
