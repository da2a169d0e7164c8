"""Checks that an environment keeps its promises: `python -m gigpo_jax.env_bridge.conformance NAME --split train`.

What is promised stands in `base.TextEnv`; GiGPO depends on it. Two members of a group that take the same actions must
see the same states, or anchor states mean nothing; a hash-seeded order in an observation makes them differ from one
worker to the next.
"""

import argparse
import json
import math
import os
import pathlib
import pickle
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from gigpo_jax.env_bridge import registry
from gigpo_jax.env_bridge.base import Expert, TextEnv
from gigpo_jax.env_bridge.types import Observation, StepResult, Task
from gigpo_jax.errors import InputError

NASTY = (
    *("", " ", "\n", "\x00", "\ud800", "\u202egnihton", "\u6211 \U0001f600", "{0} {task} %s %(a)s"),
    *("None", "-1", "1e309", "..", "../../etc/passwd", "'; drop table", "[", "](", "search[", "click[]"),
    *("<action>look</action>", "go to " * 2000, "(" * 5000),
)
_ROOT = str(pathlib.Path(__file__).resolve().parents[2])
_BOOT = (
    "import sys; sys.path.insert(0, sys.argv[1]); from gigpo_jax.env_bridge.conformance import answer_afresh; "
    "answer_afresh()"
)
_FRESH_S = 120.0  # limit of a check in a fresh interpreter


class ConformanceError(AssertionError):
    """An environment broke a promise; the text says which, where and how."""


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
    make: Callable[[], TextEnv],
    *,
    split: str,
    make_expert: Callable[[int], Expert] | None = None,
    tasks: int = 4,
    steps: int = 30,
    seed: int = 0,
    limit_s: float = 10.0,
) -> list[str]:
    """Plays an environment in several ways and compares.

    Args:
      make: builds one; has to be picklable (`functools.partial(registry.make, name, **options)` is), because some
        checks run in fresh interpreters.
      split: whose tasks are played.
      make_expert: seed -> a demonstrator, if there is one; without it perhaps no episode reaches its end.
      tasks: how many tasks are played, spread over the split.
      steps: the most actions in an episode.
      seed: of the random actions.
      limit_s: a call may take so long, s.

    Returns:
      What was found to hold, a line each.

    Raises:
      ConformanceError: the first promise that was broken.
    """
    held = []
    environment = make()
    everything = _check_tasks(make, environment, split)
    held.append(f"{len(everything)} tasks with unique ids, in the same order every time, and they pickle")
    chosen = [everything[index * len(everything) // tasks] for index in range(min(tasks, len(everything)))]
    walks = [_random_walk(environment, task, steps, random.Random(f"{seed} {task.id}"), limit_s) for task in chosen]
    held.append(f"{len(walks)} random walks, with {len(NASTY)} nasty actions among others: no exception, no wrong type")
    if make_expert is not None:
        walks += [_expert_walk(environment, make_expert(seed), task, steps, limit_s) for task in chosen]
        _require(any(walk.done for walk in walks), f"the expert finishes none of {len(chosen)} tasks in {steps} steps")
    ended = sum(walk.done for walk in walks)
    held.append(f"{ended} of {len(walks)} episodes came to their end" + (", and reset follows" if ended else ""))
    for walk in reversed(walks):
        observation = _reset(environment, walk.task, limit_s)
        for action in (observation.admissible or ())[:1]:  # an episode that is given up in the middle
            _step(environment, walk.task, action, limit_s)
        _compare(walk, _replay(environment, walk, limit_s), "when it is played again in the same object")
        _compare(walk, _replay(make(), walk, limit_s), "when it is played in a new object")
    held.append("the same task and actions give the same observations, whatever was played before")
    _check_independence(make, walks, limit_s)
    held.append("members of a group do not touch each other")
    for count in ("the first", "the second"):
        _timed(f"close, {count} time,", limit_s, environment.close)
    for hash_seed in ("0", "1"):
        _check_afresh(make, walks, hash_seed)
    held.append("a fresh interpreter with another hash seed sees the same, anchors included; jax is not imported")
    held.append("closing gives back threads, files and processes")
    return held


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ConformanceError(message)


def _check_tasks(make: Callable[[], TextEnv], environment: TextEnv, split: str) -> Sequence[Task]:
    tasks = list(environment.tasks(split))
    _require(bool(tasks), f'tasks("{split}") is empty')
    for task in tasks:
        _require(isinstance(task, Task), f'tasks("{split}") holds a {type(task).__name__}, not a types.Task')
        _require(task.split == split, f'{task}: its split is not "{split}"')
    ids = [task.id for task in tasks]
    _require(len(set(ids)) == len(ids), f'tasks("{split}"): the id "{max(ids, key=ids.count)}" is there more than once')
    for other, how in ((environment, "the second time"), (make(), "in a new object")):
        _require(list(other.tasks(split)) == tasks, f'tasks("{split}") are others {how}')
    _require(pickle.loads(pickle.dumps(tasks)) == tasks, "a task differs after pickling")
    return tasks


def _timed(what: str, limit_s: float, call: Callable[[], Any]) -> Any:
    started = time.monotonic()
    try:
        value = call()
    except Exception as err:
        raise ConformanceError(f"{what} raised {type(err).__name__}: {err}") from err
    took = time.monotonic() - started
    _require(took <= limit_s, f"{what} took {took:.1f} s, more than {limit_s:g} s")
    return value


def _reset(environment: TextEnv, task: Task, limit_s: float) -> Observation:
    observation = _timed(f"{task.id}: reset", limit_s, lambda: environment.reset(task))
    _check_observation(f"{task.id}: reset", observation)
    return observation


def _step(environment: TextEnv, task: Task, action: str, limit_s: float) -> StepResult:
    what = f"{task.id}: step({action[:60]!r})"
    result = _timed(what, limit_s, lambda: environment.step(action))
    _require(isinstance(result, StepResult), f"{what} returned a {type(result).__name__}, not a types.StepResult")
    _check_observation(what, result.observation)
    reward, score = result.reward, result.info.get("score")
    _require(isinstance(reward, (int, float)) and math.isfinite(reward), f"{what}: reward {reward!r} is no number")
    _require(isinstance(result.done, bool), f"{what}: done {result.done!r} is no bool")
    _require(isinstance(result.info.get("won"), bool), f'{what}: info["won"] has to be there, a bool')
    _require(
        isinstance(score, (int, float)) and 0 <= score <= 1,
        f'{what}: info["score"] has to be there, a number in [0, 1]',
    )
    _require(pickle.loads(pickle.dumps(result)) == result, f"{what}: the result differs after pickling")
    return result


def _check_observation(what: str, observation: Observation) -> None:
    _require(isinstance(observation, Observation), f"{what}: a {type(observation).__name__}, not a types.Observation")
    for name in ("text", "anchor", "task"):
        _require(isinstance(getattr(observation, name), str), f"{what}: {name} is not text")
    _require(observation.anchor != "", f"{what}: the anchor state is empty, so all such states would be one")
    admissible = observation.admissible
    if admissible is not None:
        _require(isinstance(admissible, tuple), f"{what}: admissible is a {type(admissible).__name__}, not a tuple")
        _require(all(isinstance(action, str) for action in admissible), f"{what}: an admissible action is not text")
        _require(len(set(admissible)) == len(admissible), f"{what}: an admissible action is listed twice")


def _random_walk(environment: TextEnv, task: Task, steps: int, draw: random.Random, limit_s: float) -> _Walk:
    """Admissible actions and nasty ones, mixed."""
    first = observation = _reset(environment, task, limit_s)
    actions: list[str] = []
    results: list[StepResult] = []
    nasty = list(NASTY)
    draw.shuffle(nasty)
    while len(actions) < steps + len(NASTY) and not (results and results[-1].done):
        if observation.admissible and (not nasty or draw.random() < 0.5):
            actions.append(draw.choice(observation.admissible))
        else:
            actions.append(nasty.pop() if nasty else draw.choice(NASTY))
        results.append(_step(environment, task, actions[-1], limit_s))
        observation = results[-1].observation
        _require(observation.task == first.task, f"{task.id}: the task's words change after {actions[-1][:60]!r}")
    return _Walk(task, tuple(actions), first, tuple(results))


def _expert_walk(environment: TextEnv, expert: Expert, task: Task, steps: int, limit_s: float) -> _Walk:
    first = observation = _reset(environment, task, limit_s)
    actions: list[str] = []
    results: list[StepResult] = []
    while len(actions) < steps and not (results and results[-1].done):
        actions.append(expert.act(observation))
        results.append(_step(environment, task, actions[-1], limit_s))
        observation = results[-1].observation
    return _Walk(task, tuple(actions), first, tuple(results))


def _replay(environment: TextEnv, walk: _Walk, limit_s: float) -> _Walk:
    first = _reset(environment, walk.task, limit_s)
    results = tuple(_step(environment, walk.task, action, limit_s) for action in walk.actions)
    return _Walk(walk.task, walk.actions, first, results)


def _compare(expected: _Walk, seen: _Walk, when: str) -> None:
    """Two plays of the same actions have to be equal in every field."""
    _difference(expected.first, seen.first, f"{expected.task.id}: reset", when)
    for number, (one, other) in enumerate(zip(expected.results, seen.results, strict=True)):
        what = f"{expected.task.id}: step {number + 1}, {expected.actions[number][:60]!r}"
        _difference(one.observation, other.observation, what, when)
        rest = (one.reward, one.done, dict(one.info)), (other.reward, other.done, dict(other.info))
        _require(rest[0] == rest[1], f"{what}: {rest[1]} instead of {rest[0]} {when}")


def _difference(one: Observation, other: Observation, what: str, when: str) -> None:
    for name in ("text", "anchor", "admissible", "task"):
        before, after = getattr(one, name), getattr(other, name)
        _require(before == after, f"{what}: {name} is {after!r:.300} instead of {before!r:.300} {when}")


def _check_independence(make: Callable[[], TextEnv], walks: Sequence[_Walk], limit_s: float) -> None:
    """All walks at once, one object each, a step in turn."""
    environments = [make() for _ in walks]
    firsts = [_reset(environment, walk.task, limit_s) for environment, walk in zip(environments, walks)]
    results: list[list[StepResult]] = [[] for _ in walks]
    for number in range(max(len(walk.actions) for walk in walks)):
        for index, walk in enumerate(walks):
            if number < len(walk.actions):
                results[index].append(_step(environments[index], walk.task, walk.actions[number], limit_s))
    for walk, first, seen in zip(walks, firsts, results):
        _compare(walk, _Walk(walk.task, walk.actions, first, tuple(seen)), "when others are played at the same time")
    for environment in environments:
        environment.close()


# In a fresh interpreter


def _check_afresh(make: Callable[[], TextEnv], walks: Sequence[_Walk], hash_seed: str) -> None:
    try:
        question = pickle.dumps((make, [(walk.task, walk.actions) for walk in walks]))
    except (pickle.PicklingError, AttributeError, TypeError) as err:
        raise ConformanceError(
            f"make has to be picklable: a function of a module, or functools.partial ({err})"
        ) from err
    question = pickle.dumps((list(sys.path), question))
    command = [sys.executable, "-P", "-c", _BOOT, _ROOT]
    try:
        done = subprocess.run(
            command,
            input=question,
            capture_output=True,
            timeout=_FRESH_S,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            check=False,
        )
    except subprocess.TimeoutExpired as err:
        raise ConformanceError(f"a fresh interpreter did not end within {_FRESH_S:g} s after close") from err
    _require(
        done.returncode == 0,
        f"a fresh interpreter failed with status {done.returncode}: {done.stderr.decode(errors='replace')[-1000:]}",
    )
    seen, leaks, imports = pickle.loads(done.stdout)
    _require("jax" not in imports, "the environment imports jax; environment workers must not")
    for expected, (first, results) in zip(walks, seen, strict=True):
        walk = _Walk(expected.task, expected.actions, first, results)
        _compare(expected, walk, f"in a fresh interpreter with PYTHONHASHSEED={hash_seed}")
    _require(not leaks, f"after close there are more {', '.join(leaks)} than before make")


def answer_afresh() -> None:
    """The other side of the checks in a fresh interpreter: plays what stdin asks for, answers on stdout."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what an environment prints is no answer
    sys.path[:], question = pickle.loads(sys.stdin.buffer.read())
    make, walks = pickle.loads(question)
    seen = _play_all(make, walks)
    before = _resources()
    _play_all(make, walks[:1])
    after = _resources()
    leaks = [name for name in before if after[name] > before[name]]
    answers.write(pickle.dumps((seen, leaks, [name for name in ("jax",) if name in sys.modules])))
    answers.close()


def _play_all(
    make: Callable[[], TextEnv], walks: Sequence[tuple[Task, Sequence[str]]]
) -> list[tuple[Observation, tuple[StepResult, ...]]]:
    environment = make()
    seen = []
    for task, actions in walks:
        first = environment.reset(task)
        seen.append((first, tuple(environment.step(action) for action in actions)))
    environment.close()
    return seen


def _resources() -> dict[str, int]:
    """How many threads, open files and child processes there are (files and children on Linux only)."""
    counts = {"threads": threading.active_count()}
    if os.path.isdir("/proc/self/fd"):
        counts["open files"] = len(os.listdir("/proc/self/fd"))
        children = pathlib.Path("/proc/self/task").glob("*/children")
        counts["processes"] = sum(len(path.read_text().split()) for path in children)
    return counts


def _option(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form KEY=VALUE")
    try:
        return key, json.loads(value)
    except json.JSONDecodeError:
        return key, value


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m gigpo_jax.env_bridge.conformance", description=__doc__)
    parser.add_argument("name", help="an environment of the registry, or module:NAME")
    parser.add_argument("--split", default="train")
    parser.add_argument(
        "--option", action="append", type=_option, default=[], metavar="KEY=VALUE", help="for the builder; repeatable"
    )
    parser.add_argument("--tasks", type=int, default=4, help="how many tasks are played")
    parser.add_argument("--limit", type=float, default=10.0, help="seconds that a reset or step may take")
    args = parser.parse_args(argv)
    options = dict(args.option)
    try:
        if args.tasks < 1 or args.limit <= 0:
            raise InputError(f"--tasks {args.tasks} --limit {args.limit:g}: give at least one task and some time")
        entry = registry.spec(args.name)
        expert = partial(registry.make_expert, args.name) if entry.expert else None
        make = partial(registry.make, args.name, **options)
        limits = {"tasks": args.tasks, "steps": entry.max_steps, "limit_s": args.limit}
        held = check_environment(make, split=args.split, make_expert=expert, **limits)
    except InputError as err:
        print(err, file=sys.stderr)
        return 2
    except ConformanceError as err:
        print(f"{args.name} breaks a promise: {err}", file=sys.stderr)
        return 1
    print("\n".join("holds: " + line for line in held))
    return 0


if __name__ == "__main__":
    sys.exit(main())
