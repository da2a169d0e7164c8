"""Replays of saved episodes: trajectories with other anchors, and with the regret of each step."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gigpo_jax.core.errors import InputError
from gigpo_jax.env_bridge.base import TextEnv
from gigpo_jax.env_bridge.prompts import History, Prompt
from gigpo_jax.env_bridge.types import Observation, Task, anchor_hash
from gigpo_jax.models.vision.images import PromptImages
from gigpo_jax.rollout.episode_parts import Episode, EpisodeJob
from gigpo_jax.rollout.episode_settings import EpisodeSettings
from gigpo_jax.rollout.episode_texts import add_episode_text, summary_anchor
from gigpo_jax.rollout.record import SavedEpisode, SavedStep
from gigpo_jax.trajectory import Past, Trajectory, Turn

BuildPrompt = Callable[[Observation, History], tuple[Prompt, PromptImages | None]]


def replay_episodes(
    env: TextEnv,
    episodes: Sequence[SavedEpisode],
    settings: EpisodeSettings,
    *,
    prompt: BuildPrompt,
) -> list[Trajectory]:
    """Plays the actions of episodes again.

    Args:
      env: Environment of the run; only its anchors and the option `regret` may differ.
      episodes: Saved episodes; aborted ones are skipped.
      settings: Settings of the run's episodes.
      prompt: Function that builds the policy's prompts, with their images.

    Returns:
      Trajectories of the episodes that were not aborted.

    Raises:
      InputError: the environment answers differently than in the rollout.
    """
    shared: dict[int, dict[Any, Any]] = defaultdict(dict)
    # An aborted episode has no outcome, and training does not use it either.
    return [
        _replay_episode(env, episode, settings, prompt, shared[episode.group])
        for episode in episodes
        if not episode.aborted
    ]


def _replay_episode(
    env: TextEnv,
    saved: SavedEpisode,
    settings: EpisodeSettings,
    prompt: BuildPrompt,
    shared: dict[Any, Any],
) -> Trajectory:
    task = Task(saved.task, saved.type, saved.split, saved.data, saved.answer)
    trajectory = Trajectory(
        task,
        saved.group,
        saved.member,
        won=saved.won,
        score=saved.score,
        truncated=saved.truncated,
        past=Past(saved.past, source=saved.source),
    )
    observation = env.reset(task)
    trajectory.words = observation.task
    # Nothing is sampled, so the key of requests does not matter.
    job = EpisodeJob(task, saved.group, saved.member, lambda *_: (0, 0), shared=shared)
    history = History(settings.history)
    parts = settings.make_parts()
    episode = Episode(job, trajectory, history, None, observation, settings.max_steps, parts)
    for action in saved.past:
        for part in parts:
            part.observe(episode.observation)
        history.add(episode.observation.text, action, images=episode.observation.images)
        episode.observation = env.step(action).observation
    for step in saved.steps:
        _replay_step(env, episode, step, settings, prompt)
    return trajectory


def _replay_step(
    env: TextEnv,
    episode: Episode,
    step: SavedStep,
    settings: EpisodeSettings,
    prompt: BuildPrompt,
) -> None:
    observation = episode.observation
    history = episode.history
    current_prompt, images = prompt(observation, history)
    plan = history.plan
    # The state of a step is its task and past actions. If these do not give the same prompts and
    # rewards again, continuations would start from another state.
    is_same = current_prompt.text == step.prompt
    if step.is_summary:
        _check_answers(is_same, episode.trajectory)
        turn = _make_turn(step, observation, current_prompt, images, plan)
        add_episode_text(episode, current_prompt, turn)
        return
    history.plan = settings.parse(step.response).plan or plan
    result = env.step(step.action)
    _check_answers(is_same and settings.reward(result) == step.reward, episode.trajectory)
    turn = _make_turn(step, observation, current_prompt, images, plan)
    turn = replace(turn, regret=result.info.get("regret"), feedback=result.observation.text)
    for part in episode.parts:
        part.observe(observation)
        turn = part.after_turn(episode, turn)
    episode.trajectory.turns.append(turn)
    # With the observation before the action, as in the rollout.
    history.add(observation.text, step.action, images=observation.images)
    history.add_response(current_prompt, step.tokens)
    episode.observation = result.observation


def _check_answers(is_same: bool, trajectory: Trajectory) -> None:
    """Raises InputError unless the environment answered as in the rollout."""
    if not is_same:
        raise InputError(
            f"task {trajectory.task.id!r} answered the same actions differently at step "
            f"{len(trajectory.turns)}",
            key="config.env.name",
            fix="name an environment that replays exactly (gigpo envs check)",
        )


def _make_turn(
    step: SavedStep,
    observation: Observation,
    prompt: Prompt,
    images: PromptImages | None,
    plan: str | None,
) -> Turn:
    """A saved step's turn, with the replay's anchor."""
    # A hash of the admissible actions: two states with one anchor and other choices are ambiguous.
    choices = None
    if observation.admissible is not None and not step.is_summary:
        choices = anchor_hash("\n".join(observation.admissible))
    return Turn(
        prompt_tokens=np.asarray(prompt.tokens, np.int32),
        response_tokens=np.asarray(step.tokens, np.int32),
        logprobs=np.asarray(step.logprobs, np.float32),
        prompt=step.prompt,
        response=step.response,
        action=step.action,
        valid=step.valid,
        admissible=step.admissible,
        observation=observation.text,
        anchor=summary_anchor(observation.anchor) if step.is_summary else observation.anchor,
        reward=step.reward,
        penalty=step.penalty,
        finish_reason=step.finish_reason,
        version=step.version,
        choices=choices,
        task=observation.task,
        images=images,
        is_text=step.is_summary,
        plan=plan,
    )
