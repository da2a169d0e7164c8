"""Expert episodes as supervised samples: what the policy would be shown at each step, and what it should respond."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gigpo_jax.env_bridge.base import Expert, TextEnv
from gigpo_jax.env_bridge.history import Event, History
from gigpo_jax.env_bridge.types import Observation, Task
from gigpo_jax.rollout.episode import EpisodeSettings


class DemonstratedTurn(NamedTuple):
    """One step as texts, and the images of the prompt, uint8 [H, W, 3] each."""

    prompt: str
    response: str
    images: tuple[np.ndarray, ...]


@dataclass(frozen=True)
class Demonstration:
    """One demonstrated episode.

    Attributes:
      turns: of its steps.
      won: whether the demonstrator reached the goal.
    """

    turns: tuple[DemonstratedTurn, ...]
    won: bool


@dataclass(frozen=True)
class ExpertEpisode:
    """What an expert saw and did.

    Attributes:
      steps: for each step the observation, and the event with the expert's thought if it has one.
      last: the observation after the last step.
      won: whether the expert reached the goal.
    """

    steps: tuple[tuple[Observation, Event], ...]
    last: Observation
    won: bool


def episode_seed(seed: int, episode: int) -> int:
    """A seed of its own for each demonstrated episode, the same on every machine."""
    return int.from_bytes(hashlib.blake2b(f"demonstration {seed} {episode}".encode(), digest_size=6).digest(), "little")


def demonstrate(
    env: TextEnv,
    expert: Expert,
    task: Task,
    settings: EpisodeSettings,
    *,
    encode: Callable[..., Sequence[int]],
    write: Callable[[str], str] | None = None,
) -> Demonstration:
    """Lets an expert play one episode.

    Args:
      env: plays it.
      expert: made for this episode.
      task: what to do.
      settings: prompts and length, as in rollouts.
      encode: measures prompts; see `build_prompt`.
      write: action -> response, where the environment has a format of its own (`registry.Environment.write`).
    """
    played, past, turns = play_expert(env, expert, task, settings.max_steps), History(settings.history), []
    for observation, event in played.steps:
        prompt = settings.prompt(observation, past, encode)
        turns.append(DemonstratedTurn(prompt.text, (write or response_text)(event.action), prompt.images))
        past.add(event.observation, event.action, images=event.images)
    return Demonstration(tuple(turns), played.won)


def play_expert(env: TextEnv, expert: Expert, task: Task, max_steps: int) -> ExpertEpisode:
    """Lets an expert play one episode of at most `max_steps` actions."""
    observation, steps, won = env.reset(task), [], False
    for _ in range(max_steps):
        action = expert.act(observation)
        thought = getattr(expert, "thought", "")
        steps.append((observation, Event(observation.text, action, thought, observation.images)))
        result = env.step(action)
        observation, won = result.observation, bool(result.info["won"])
        if result.done:
            break
    return ExpertEpisode(tuple(steps), observation, won)


def response_text(action: str) -> str:
    """A response in the format of the environments, without a thought."""
    return f"<think></think><action>{action}</action>"
