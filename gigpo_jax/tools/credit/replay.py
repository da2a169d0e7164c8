"""Replays of saved episodes: trajectories with other anchors, and with the regret of each step."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from gigpo_jax.core.errors import InputError
from gigpo_jax.env_bridge.base import TextEnv
from gigpo_jax.env_bridge.beliefs import BeliefGrader, grade_response
from gigpo_jax.env_bridge.conversations import summary_anchor
from gigpo_jax.env_bridge.plans import stated_plan
from gigpo_jax.env_bridge.prompts import History, Prompt
from gigpo_jax.env_bridge.types import Observation, StepResult, Task, anchor_hash
from gigpo_jax.models.vision.images import PromptImages
from gigpo_jax.rollout.record import SavedEpisode, SavedStep
from gigpo_jax.trajectory import Past, Trajectory, Turn


def replay_episodes(
    env: TextEnv,
    episodes: Sequence[SavedEpisode],
    *,
    window: int,
    prompt: Callable[[Observation, History], tuple[Prompt, PromptImages | None]],
    reward: Callable[[StepResult], float] = lambda result: result.reward,
    plan_kind: str = "none",
    strategy_episodes: int = 1,
    make_grader: Callable[[], BeliefGrader] | None = None,
) -> list[Trajectory]:
    """Plays the actions of episodes again.

    Args:
      env: Environment of the run; only its anchors and the option `regret` may differ.
      episodes: Saved episodes; aborted ones are skipped.
      window: Number of events that the history keeps.
      prompt: Function that builds the policy's prompts, with their images.
      reward: Function that gives the reward of a step (`EpisodeSettings.reward`).
      plan_kind: Kind of the policy's plans, one of `plans.PLANS`.
      strategy_episodes: Number of episodes with one strategy.
      make_grader: See `EpisodeSettings`.

    Returns:
      Trajectories of the episodes that were not aborted.

    Raises:
      InputError: the environment answers differently than in the rollout.
    """
    trajectories = []
    for episode in episodes:
        # An aborted episode has no outcome, and training does not use it either.
        if episode.aborted:
            continue
        task = Task(episode.task, episode.type, episode.split, episode.data, episode.answer)
        trajectory = Trajectory(
            task,
            episode.group,
            episode.member,
            won=episode.won,
            score=episode.score,
            truncated=episode.truncated,
            past=Past(episode.past),
            strategy=episode.member // strategy_episodes,
        )
        observation = env.reset(task)
        history = History(window)
        grader = None if make_grader is None else make_grader()
        trajectory.words = observation.task
        for action in episode.past:
            if grader is not None:
                grader.observe(observation)
            history.add(observation.text, action, images=observation.images)
            observation = env.step(action).observation
        for step in episode.steps:
            current_prompt, images = prompt(observation, history)
            # The state of a step is its task and past actions. If these do not give the same
            # prompts and rewards again, continuations would start from another state.
            is_same = current_prompt.text == step.prompt
            if step.is_summary:
                _check_answers(is_same, task, trajectory)
                trajectory.turns.append(
                    _turn(step, observation, current_prompt, images, None, history.plan)
                )
                history.add_summary(current_prompt, step.action)
                continue
            plan = history.plan
            history.plan = stated_plan(plan_kind, step.response) or plan
            result = env.step(step.action)
            _check_answers(is_same and reward(result) == step.reward, task, trajectory)
            turn = _turn(step, observation, current_prompt, images, result.info.get("regret"), plan)
            if grader is not None:
                grader.observe(observation)
                feedback = result.observation.text
                belief = grade_response(
                    grader,
                    turn.response,
                    valid=turn.valid,
                    admissible=turn.admissible,
                    feedback=feedback,
                )
                turn = replace(turn, feedback=feedback, belief=belief)
            trajectory.turns.append(turn)
            # With the observation before the action, as in the rollout.
            history.add(observation.text, step.action, images=observation.images)
            history.add_response(current_prompt, step.tokens)
            observation = result.observation
        trajectories.append(trajectory)
    return trajectories


def _check_answers(is_same: bool, task: Task, trajectory: Trajectory) -> None:
    """Raises InputError unless the environment answered as in the rollout."""
    if not is_same:
        raise InputError(
            f"task {task.id!r} answered the same actions differently at step "
            f"{len(trajectory.turns)}",
            key="config.env.name",
            fix="name an environment that replays exactly (gigpo envs check)",
        )


def _turn(
    step: SavedStep,
    observation: Observation,
    prompt: Prompt,
    images: PromptImages | None,
    regret: float | None,
    plan: str | None,
) -> Turn:
    """A saved step's turn, with the replay's anchor and regret."""
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
        regret=regret,
        task=observation.task,
        images=images,
        is_summary=step.is_summary,
        plan=plan,
    )
