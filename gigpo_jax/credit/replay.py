"""Saved episodes -> trajectories, by replaying their actions: with other anchors, and with the regret of each."""

from collections.abc import Callable, Sequence

import numpy as np

from gigpo_jax.env_bridge.base import TextEnv
from gigpo_jax.env_bridge.history import History
from gigpo_jax.env_bridge.prompts import Prompt
from gigpo_jax.env_bridge.types import Observation, Task, anchor_hash
from gigpo_jax.errors import InputError
from gigpo_jax.models.images import PromptImages
from gigpo_jax.rollout.record import SavedEpisode, SavedStep
from gigpo_jax.trajectory import Trajectory, Turn


def replay(
    env: TextEnv,
    episodes: Sequence[SavedEpisode],
    *,
    window: int,
    prompt: Callable[[Observation, History], tuple[Prompt, PromptImages | None]],
) -> list[Trajectory]:
    """Plays the actions of episodes again.

    Args:
      env: the environment, built as for the run but for its anchors and the option `regret`.
      episodes: saved ones; aborted ones are left out.
      window: events that the history keeps.
      prompt: builds the policy's prompts, with their images.

    Returns:
      The episodes that were not aborted.

    Raises:
      InputError: the environment answers otherwise than it did.
    """
    trajectories = []
    for episode in episodes:
        if episode.aborted:
            continue
        task = Task(episode.task, episode.type, episode.split, episode.data, episode.answer)
        trajectory = Trajectory(task, episode.group, episode.member, won=episode.won, score=episode.score)
        observation, history = env.reset(task), History(window)
        trajectory.words = observation.task
        for step in episode.steps:
            shown, images = prompt(observation, history)
            result = env.step(step.action)
            if shown.text != step.prompt or result.reward != step.reward:
                raise InputError(
                    f"config.env.name: task {task.id!r} answered the same actions differently at step "
                    f"{len(trajectory.turns)}; credit needs an environment that replays exactly"
                )
            trajectory.turns.append(_turn(step, observation, shown, images, result.info.get("regret")))
            history.add(observation.text, step.action, images=observation.images)
            observation = result.observation
        trajectories.append(trajectory)
    return trajectories


def _turn(
    step: SavedStep, observation: Observation, shown: Prompt, images: PromptImages | None, regret: float | None
) -> Turn:
    """The turn that a saved step was, with the anchor and the regret of the replay."""
    return Turn(
        prompt_tokens=np.asarray(shown.tokens, np.int32),
        response_tokens=np.asarray(step.tokens, np.int32),
        logprobs=np.asarray(step.logprobs, np.float32),
        prompt=step.prompt,
        response=step.response,
        action=step.action,
        valid=step.valid,
        admissible=step.admissible,
        observation=observation.text,
        anchor=observation.anchor,
        reward=step.reward,
        penalty=step.penalty,
        finish_reason=step.finish_reason,
        version=step.version,
        choices=None if observation.admissible is None else anchor_hash("\n".join(observation.admissible)),
        regret=regret,
        task=observation.task,
        images=images,
    )
