"""Replays that tell whether equal anchor states have equal futures."""

import random
from collections.abc import Callable, Sequence
from typing import Any

from gigpo_jax.env_bridge.base import TextEnv
from gigpo_jax.env_bridge.types import Observation, StepResult, Task

ListActions = Callable[[Observation], Sequence[str]]


def list_admissible(observation: Observation) -> Sequence[str]:
    """The actions that the environment lists."""
    return observation.admissible or ()


def read_outcome(result: StepResult) -> tuple[Any, ...]:
    """What a step gives beside its observation."""
    return result.reward, result.done, result.info


def count_equal_anchors(
    env: TextEnv,
    task: Task,
    *,
    episodes: int,
    steps: int,
    seed: int,
    list_actions: ListActions = list_admissible,
    read: Callable[[StepResult], Any] = read_outcome,
    same_step: bool = False,
) -> int:
    """Plays random episodes of a task, and compares the futures of equal anchor states.

    Args:
      env: Environment, with a step limit above `3 * steps`.
      task: Task of all episodes.
      episodes: Number of random episodes.
      steps: Length of an episode, and of a continuation.
      seed: Seed of the actions.
      list_actions: Function that lists the actions to choose from.
      read: Function that returns what of a step must be equal beside its observation.
      same_step: Whether to compare only anchor states that were reached by equally many actions.

    Returns:
      Number of pairs of different action sequences that led to the same anchor state.
    """
    rng = random.Random(seed)
    prefixes: dict[tuple[str, int], list[str]] = {}
    pairs = 0
    for _ in range(episodes):
        observation = env.reset(task)
        actions: list[str] = []
        for _ in range(steps):
            # One action in five has no effect, so that every world comes back to a state.
            choices = list_actions(observation) if rng.random() < 0.8 else ("wait",)
            assert choices
            actions.append(rng.choice(choices))
            result = env.step(actions[-1])
            if result.done:
                break
            observation = result.observation
            state = (observation.anchor, len(actions) if same_step else 0)
            prefix = prefixes.setdefault(state, list(actions))
            if prefix != actions:
                pairs += 1
                assert_equal_futures(env, task, (prefix, actions), steps, rng, list_actions, read)
                observation = _replay(env, task, actions)
    return pairs


def assert_equal_futures(
    env: TextEnv,
    task: Task,
    prefixes: Sequence[Sequence[str]],
    steps: int,
    rng: random.Random,
    list_actions: ListActions,
    read: Callable[[StepResult], Any],
) -> None:
    """Continues after two prefixes with the same random actions; all results must be equal."""
    observation = _replay(env, task, prefixes[0])
    admissible = observation.admissible
    commands = []
    results = []
    for _ in range(steps):
        commands.append(rng.choice(list_actions(observation)))
        results.append(env.step(commands[-1]))
        observation = results[-1].observation
        if results[-1].done:
            break
    assert _replay(env, task, prefixes[1]).admissible == admissible
    for command, result in zip(commands, results):
        other = env.step(command)
        assert read(other) == read(result)
        assert other.observation.text == result.observation.text
        assert other.observation.admissible == result.observation.admissible
        assert other.observation.anchor == result.observation.anchor


def _replay(env: TextEnv, task: Task, actions: Sequence[str]) -> Observation:
    observation = env.reset(task)
    for action in actions:
        observation = env.step(action).observation
    return observation
