"""The env checker: plays an environment in worker processes and compares repeated episodes.

GiGPO depends on it: members of a group that take the same actions must see the same states, or
anchor states mean nothing. The workers limit every call and validate every result (boundary.py);
this module checks the properties of more than one call.
"""

import asyncio
import os
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from gigpo_jax.env_bridge.experts import Expert, begin_episode
from gigpo_jax.env_bridge.processes.pool import EnvPool, PooledEnv
from gigpo_jax.env_bridge.types import EnvError, Observation, StepResult, Task

_T = TypeVar("_T")

# What a model may write: nothing, control characters, a lone surrogate, right-to-left text,
# formats, numbers out of range, paths, code, half an action, tags, and very long or nested text.
NASTY_ACTIONS = (
    "",
    " ",
    "\n",
    "\x00",
    "\ud800",
    "\u202egnihton",
    "\u6211 \U0001f600",
    "{0} {task} %s %(a)s",
    "None",
    "-1",
    "1e309",
    "..",
    "../../etc/passwd",
    "'; drop table",
    "[",
    "](",
    "search[",
    "click[]",
    "<action>look</action>",
    "go to " * 2000,
    "(" * 5000,
)


class EnvCheckError(AssertionError):
    """A broken promise of `base.TextEnv`, described in one line."""


class ReplayError(EnvCheckError):
    """Episodes that differ though task and actions are the same."""


@dataclass(frozen=True)
class _CheckedWalk:
    """One episode: its task, actions, observations and results."""

    task: Task
    actions: tuple[str, ...]
    first_observation: Observation
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
      build: Builder of the environment, "module:NAME".
      options: Keyword arguments of the builder.
      split: Split of the tasks.
      make_expert: Function from a seed to a demonstrator; without one perhaps no episode reaches
        its end.
      tasks: Number of tasks, spread over the split.
      steps: Largest number of actions in an episode.
      limit_s: Time limit of a step, s; building, `tasks` and `reset` have 60 s.

    Returns:
      The properties that hold, a line each.

    Raises:
      EnvCheckError: The first broken promise; a `ReplayError` if episodes cannot be replayed.
      InputError: The environment's own error about the options, the split or the data.
    """
    # `_check_concurrent_episodes` plays all walks at once, each in an environment of its own.
    episodes = tasks if make_expert is None else 2 * tasks
    try:
        with (
            _make_pool(build, options, "1", episodes, limit_s) as first_pool,
            _make_pool(build, options, "2", 1, limit_s) as second_pool,
        ):
            split_tasks = first_pool.tasks(split)
            _check_tasks(split_tasks, second_pool.tasks(split), split)
            count = min(tasks, len(split_tasks))
            spread_tasks = [
                # Spread, because neighbours in a split are often of one type.
                split_tasks[index * len(split_tasks) // tasks]
                for index in range(count)
            ]
            findings = [f"{len(split_tasks)} tasks with unique ids, the same in every process"]
            episode_checks = _check_episodes(
                first_pool, second_pool, spread_tasks, steps, make_expert
            )
            return findings + asyncio.run(episode_checks)
    # An InputError passes: the options or the data are wrong, not the environment.
    except EnvError as err:
        raise EnvCheckError(str(err)) from err


def _make_pool(
    build: str, options: Mapping[str, Any] | None, hash_seed: str, envs: int, limit_s: float
) -> EnvPool:
    # Another hash seed shows an environment that depends on the order of a set.
    environ = {"PYTHONHASHSEED": hash_seed}
    return EnvPool(
        build, options, workers=1, envs_per_worker=envs, step_timeout_s=limit_s, environ=environ
    )


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise EnvCheckError(message)


def _require_equal(is_equal: bool, message: str) -> None:
    if not is_equal:
        raise ReplayError(message)


def _check_tasks(tasks: Sequence[Task], second_tasks: Sequence[Task], split: str) -> None:
    """Checks that two processes list the same valid tasks of a split."""
    _require(bool(tasks), f'tasks("{split}") is empty')
    ids = [task.id for task in tasks]
    if len(set(ids)) < len(ids):
        duplicate = max(ids, key=ids.count)
        raise EnvCheckError(f'tasks("{split}"): the id "{duplicate}" is there more than once')
    _require(
        all(task.split == split for task in tasks), f'tasks("{split}"): a task has another split'
    )
    _require(second_tasks == tasks, f'tasks("{split}") differ in another process')


async def _check_episodes(
    first_pool: EnvPool,
    second_pool: EnvPool,
    tasks: Sequence[Task],
    steps: int,
    make_expert: Callable[[int], Expert] | None,
) -> list[str]:
    """Plays episodes, replays them in three ways, and returns the properties that hold."""
    # All walks in one environment: the replays below show any state that a reset forgets.
    async with first_pool.episode() as environment:
        walks = [await _walk_randomly(environment, task, steps) for task in tasks]
        findings = [
            f"{len(walks)} random walks with {len(NASTY_ACTIONS)} nasty actions: "
            "no exception, no malformed result"
        ]
        if make_expert is not None:
            for task in tasks:
                walks.append(await _walk_as_expert(environment, make_expert, task, steps))
            _require(
                any(walk.done for walk in walks),
                f"the expert finishes none of {len(tasks)} tasks in {steps} steps",
            )
        done_walks = sum(walk.done for walk in walks)
        findings.append(
            f"{done_walks} of {len(walks)} episodes came to their end, and reset follows"
        )
        await _check_same_object(environment, walks)
    findings.append(
        "the same task and actions give the same observations, whatever was played before"
    )

    await _check_concurrent_episodes(first_pool, walks)
    findings.append("episodes that are played at the same time do not touch each other")

    await _check_second_process(second_pool, walks)
    findings.append(
        "another process with another hash seed sees the same, anchors included; "
        "episodes leave nothing open"
    )
    return findings


async def _check_same_object(environment: PooledEnv, walks: Sequence[_CheckedWalk]) -> None:
    """Replays episodes in reverse order in the same object, each after an unfinished episode."""
    # In reverse order, because the walks were played in order: each has other predecessors now.
    for walk in reversed(walks):
        await _reset(environment, walk.task)
        for action in walk.actions[: len(walk.actions) // 2]:
            await _step(environment, walk.task, action)
        replay = await _replay_walk(environment, walk)
        _compare_walks(walk, replay, "when it is played again in the same object")


async def _check_concurrent_episodes(pool: EnvPool, walks: Sequence[_CheckedWalk]) -> None:
    """Replays all episodes at the same time, each in its own object."""
    # All at once, so that no walk gets an environment that another has given back.
    environments = [await pool.acquire() for _ in walks]
    replays = await asyncio.gather(*map(_replay_walk, environments, walks))
    for walk, replay in zip(walks, replays):
        _compare_walks(walk, replay, "when others are played at the same time")


async def _check_second_process(pool: EnvPool, walks: Sequence[_CheckedWalk]) -> None:
    """Replays all episodes twice in another process, which may open nothing new the second time."""
    async with pool.episode() as environment:
        for walk in walks:
            replay = await _replay_walk(environment, walk)
            _compare_walks(walk, replay, "in another process with another PYTHONHASHSEED")
        # After a first pass, which may open files, start threads and fill caches that are meant to
        # stay.
        baseline = _count_resources(pool.pids[0])
        for walk in walks:
            await _replay_walk(environment, walk)
        counts = _count_resources(pool.pids[0])
    leaks = [name for name, count in counts.items() if count > baseline[name]]
    _require(not leaks, f"after {len(walks)} more episodes the process has more {', '.join(leaks)}")


async def _await_call(label: str, call: Awaitable[_T]) -> _T:
    try:
        return await call
    except EnvError as err:
        raise EnvCheckError(f"{label}: {err}") from err


async def _reset(environment: PooledEnv, task: Task) -> Observation:
    label = f"{task.id}: reset"
    observation = await _await_call(label, environment.reset(task))
    _check_observation(label, observation)
    return observation


async def _step(environment: PooledEnv, task: Task, action: str) -> StepResult:
    label = f"{task.id}: step({action[:60]!r})"
    result = await _await_call(label, environment.step(action))
    won = result.info["won"]
    score = result.info["score"]
    _require(
        won == (score == 1),
        f'{label}: info["won"] is {won} with info["score"] {score}; 1 means won, and only 1',
    )
    _check_observation(label, result.observation)
    return result


def _check_observation(label: str, observation: Observation) -> None:
    _require(
        observation.anchor != "",
        f"{label}: the anchor state is empty, so all such states would be one",
    )
    actions = observation.admissible or ()
    _require(len(set(actions)) == len(actions), f"{label}: an admissible action is listed twice")


async def _play_walk(
    environment: PooledEnv,
    task: Task,
    limit: int,
    choose: Callable[[Observation], str],
    first_observation: Observation,
) -> _CheckedWalk:
    """Plays at most `limit` actions of `choose` after the first observation."""
    observation = first_observation
    actions: list[str] = []
    results: list[StepResult] = []
    while len(actions) < limit:
        actions.append(choose(observation))
        results.append(await _step(environment, task, actions[-1]))
        observation = results[-1].observation
        _require(
            observation.task == first_observation.task,
            f"{task.id}: the task's words change after {actions[-1][:60]!r}",
        )
        if results[-1].done:
            break
    return _CheckedWalk(task, tuple(actions), first_observation, tuple(results))


async def _walk_randomly(environment: PooledEnv, task: Task, steps: int) -> _CheckedWalk:
    """Plays admissible and nasty actions in random order, nasty ones twice only if they must."""
    # Seeded by the task, so that a report can be repeated. Python seeds with text by its SHA-512,
    # not by `hash`.
    generator = random.Random(task.id)
    # Each once and in a random order; `choose` takes them from the end.
    nasty_actions = generator.sample(NASTY_ACTIONS, len(NASTY_ACTIONS))

    def choose(observation: Observation) -> str:
        if observation.admissible and (not nasty_actions or generator.random() < 0.5):
            return generator.choice(observation.admissible)
        return nasty_actions.pop() if nasty_actions else generator.choice(NASTY_ACTIONS)

    first_observation = await _reset(environment, task)
    limit = steps + len(NASTY_ACTIONS)
    return await _play_walk(environment, task, limit, choose, first_observation)


async def _walk_as_expert(
    environment: PooledEnv, make_expert: Callable[[int], Expert], task: Task, steps: int
) -> _CheckedWalk:
    first_observation = await _reset(environment, task)
    expert = make_expert(0)
    begin_episode(expert, task)

    def choose(observation: Observation) -> str:
        try:
            action = expert.act(observation)
        except Exception as err:  # a user's expert may raise anything
            raise EnvCheckError(
                f"{task.id}: the expert raised {type(err).__name__}: {err}"
            ) from err
        _require(
            isinstance(action, str),
            f"{task.id}: the expert's action is a {type(action).__name__}, not a str",
        )
        return action

    return await _play_walk(environment, task, steps, choose, first_observation)


async def _replay_walk(environment: PooledEnv, walk: _CheckedWalk) -> _CheckedWalk:
    first_observation = await _reset(environment, walk.task)
    results = [await _step(environment, walk.task, action) for action in walk.actions]
    return _CheckedWalk(walk.task, walk.actions, first_observation, tuple(results))


def _compare_walks(walk: _CheckedWalk, replay: _CheckedWalk, condition: str) -> None:
    """Raises EnvCheckError if a replay, which was played under `condition`, differs."""
    reset_label = f"{walk.task.id}: reset"
    _compare_observations(walk.first_observation, replay.first_observation, reset_label, condition)
    for index, (result, replayed_result) in enumerate(
        zip(walk.results, replay.results, strict=True)
    ):
        label = f"{walk.task.id}: step {index + 1}, {walk.actions[index][:60]!r}"
        _compare_observations(result.observation, replayed_result.observation, label, condition)
        # Exact equality, also of rewards: the same code on the same numbers has the same bits.
        values = (result.reward, result.done, result.info)
        replayed_values = (replayed_result.reward, replayed_result.done, replayed_result.info)
        _require_equal(
            values == replayed_values, f"{label}: {replayed_values} instead of {values} {condition}"
        )


def _compare_observations(
    observation: Observation, replayed: Observation, label: str, condition: str
) -> None:
    for name in ("text", "anchor", "admissible", "task"):
        expected = getattr(observation, name)
        value = getattr(replayed, name)
        _require_equal(
            value == expected,
            f"{label}: {name} is {value!r:.300} instead of {expected!r:.300} {condition}",
        )
    count = len(replayed.images)
    expected_count = len(observation.images)
    _require_equal(
        count == expected_count, f"{label}: {count} images instead of {expected_count} {condition}"
    )
    for number, (image, replayed_image) in enumerate(zip(observation.images, replayed.images)):
        _require_equal(
            np.array_equal(image, replayed_image), f"{label}: image {number} differs {condition}"
        )


def _count_resources(pid: int) -> dict[str, int]:
    """Counts the threads and open files of a process on Linux; empty on other systems."""
    folders = {"threads": f"/proc/{pid}/task", "open files": f"/proc/{pid}/fd"}
    return {
        name: len(os.listdir(folder)) for name, folder in folders.items() if os.path.isdir(folder)
    }
