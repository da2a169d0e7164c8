"""Turns and trajectories: what rollouts give and learners take. numpy only."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from gigpo_jax.env_bridge.types import Task
from gigpo_jax.models.images import PromptImages


@dataclass(frozen=True, eq=False)
class Turn:
    """One environment step, with everything that training and people need to know of it.

    Attributes:
      prompt_tokens: [P] i32, exactly what the engine was given.
      response_tokens: [R] i32, exactly what it sampled; the token that ended the response included.
      logprobs: [R] f32, nats, of the distribution each token was sampled from.
      prompt: the prompt's text before the chat template.
      response: the decoded response.
      action: what was sent to the environment.
      valid: whether the response kept to the format (and, if that counts, the action was admissible).
      admissible: whether the environment had listed the action; None if it lists none.
      observation: the text the agent saw before it acted.
      anchor: the anchor state of that observation, as text.
      reward: the environment's reward for the action.
      penalty: >= 0, for an invalid or overlong response.
      finish_reason: why the response ended: "stop", "length" or "abort".
      version: which weights sampled it.
      choices: 64-bit hash of the actions that the environment had listed; None if it lists none.
      prompt_cut: whether parts of the prompt were left out to make it fit.
      regret: how many actions more the goal needs than after the best action; None if the environment does not tell.
      task: the task in words.
      thought: what the response has before the action, where the agent's format has it apart.
      feedback: the text that the environment answered to the action.
      images: of the prompt, by reference; None without any.
    """

    prompt_tokens: np.ndarray
    response_tokens: np.ndarray
    logprobs: np.ndarray
    prompt: str
    response: str
    action: str
    valid: bool
    admissible: bool | None
    observation: str
    anchor: str
    reward: float
    penalty: float
    finish_reason: str
    version: int
    choices: tuple[int, int] | None = None
    prompt_cut: bool = False
    regret: float | None = None
    task: str = ""
    thought: str = ""
    feedback: str = ""
    images: PromptImages | None = None


@dataclass(eq=False)
class Trajectory:
    """One episode.

    Attributes:
      task: what was to be done.
      group: index of the task group in the rollout.
      member: index of the trajectory in its group.
      turns: the steps in order; those before the failure if it was aborted.
      won: whether the task was done.
      score: the environment's score in [0, 1] at the end.
      aborted: whether the environment or the engine failed; such an episode takes part in no statistic.
      reason: why, in one line; "" if it was not aborted.
      policy_dependent: whether the environment failed at one of its actions, or the engine refused one of its prompts;
        leaving such an episode out may bias the statistics.
      unfinished: whether it is aborted because enough other episodes of its group had ended.
      replayed: whether it was aborted before and this is the second attempt.
      replaced: whether its group gave no signal and another group was played in its place; nothing is learnt from it.
      environment_s: time spent waiting for the environment, s.
      engine_s: time spent waiting for responses, s.
      words: the task in words.
      reflection: what the agent wrote afterwards for the next trial of the task; "" if there is none.
    """

    task: Task
    group: int
    member: int
    turns: list[Turn] = field(default_factory=list)
    won: bool = False
    score: float = 0.0
    aborted: bool = False
    reason: str = ""
    policy_dependent: bool = False
    unfinished: bool = False
    replayed: bool = False
    replaced: bool = False
    environment_s: float = 0.0
    engine_s: float = 0.0
    words: str = ""
    reflection: str = ""

    def abort(self, reason: str, *, policy_dependent: bool) -> None:
        """Marks the episode as aborted; it is neither won nor has it a score."""
        self.aborted, self.won, self.score = True, False, 0.0
        self.reason, self.policy_dependent = " ".join(reason.split()), policy_dependent

    def leave_unfinished(self) -> None:
        """Marks the episode as aborted because its group has ended."""
        self.abort("enough other episodes of its group had ended", policy_dependent=False)
        self.unfinished = True

    @property
    def total_reward(self) -> float:
        """The undiscounted return, without penalties."""
        return float(sum(turn.reward for turn in self.turns))


@dataclass(frozen=True, eq=False)
class Step:
    """One environment step of a finished episode: a row of everything that is computed per step.

    Attributes:
      trajectory: the place of its episode in the rollout.
      step: its index in that episode, from 0.
      group: the task group of that episode.
      turn: what happened.
      type: the task type of that episode.
      won: whether the episode did the task.
      answer: the known answer of its task; "" if there is none.
      environment: label of the environment in `env.mix`, "" in a run with one.
    """

    trajectory: int
    step: int
    group: int
    turn: Turn
    type: str = ""
    won: bool = False
    answer: str = ""
    environment: str = ""


def gives_signal(group: Sequence[Trajectory]) -> bool:
    """Whether the episodes of a task group that were not aborted differ in score or return."""
    return len({(episode.score, episode.total_reward) for episode in group if not episode.aborted}) > 1


def finished_steps(trajectories: Sequence[Trajectory]) -> list[Step]:
    """The steps of all episodes that were neither aborted nor replaced, in rollout order."""
    return [
        Step(place, number, t.group, turn, t.task.type, t.won, t.task.answer, t.task.environment)
        for place, t in enumerate(trajectories)
        if not (t.aborted or t.replaced)
        for number, turn in enumerate(t.turns)
    ]


def with_less_reward(steps: Sequence[Step], penalties: Sequence[float]) -> list[Step]:
    """The same steps, each with a penalty taken from its reward."""
    return [
        replace(step, turn=replace(step.turn, reward=step.turn.reward - penalty))
        for step, penalty in zip(steps, penalties, strict=True)
    ]


@dataclass(frozen=True, eq=False)
class StepCredit:
    """What an algorithm computes of N steps, in the order of `finished_steps`.

    Attributes:
      episode, step, total: [N] f32 advantages.
      anchor_group: [N] i32, equal for steps of the same anchor group.
      clip_scale: [N] f32, see `rl.advantages.Advantages`, or None.
      tokens: [N, R] f32, advantages of response tokens in place of the total, or None.
      target: [N] or [N, R] f32, what a critic learns before each response or each token of it, or None.
    """

    episode: np.ndarray
    step: np.ndarray
    total: np.ndarray
    anchor_group: np.ndarray
    clip_scale: np.ndarray | None = None
    tokens: np.ndarray | None = None
    target: np.ndarray | None = None
