"""Turns and trajectories: what rollouts give and learners take. numpy only."""

import json
import os
import pathlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gigpo_jax.env_bridge.types import Task, anchor_hash


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
      penalty: >= 0, for an invalid action.
      finish_reason: why the response ended: "stop", "length" or "abort".
      version: which weights sampled it.
      choices: 64-bit hash of the actions that the environment had listed; None if it lists none.
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
      replayed: whether it was aborted before and this is the second attempt.
      environment_s: time spent waiting for the environment, s.
      engine_s: time spent waiting for responses, s.
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
    replayed: bool = False
    environment_s: float = 0.0
    engine_s: float = 0.0

    def abort(self, reason: str, *, policy_dependent: bool) -> None:
        """Marks the episode as aborted; it is neither won nor has it a score."""
        self.aborted, self.won, self.score = True, False, 0.0
        self.reason, self.policy_dependent = " ".join(reason.split()), policy_dependent

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
    """

    trajectory: int
    step: int
    group: int
    turn: Turn


def finished_steps(trajectories: Sequence[Trajectory]) -> list[Step]:
    """The steps of all episodes that were not aborted, in rollout order."""
    return [
        Step(place, number, trajectory.group, turn)
        for place, trajectory in enumerate(trajectories)
        if not trajectory.aborted
        for number, turn in enumerate(trajectory.turns)
    ]


def write_trajectories(
    path: str | os.PathLike[str],
    trajectories: Sequence[Trajectory],
    steps: Sequence[Step] = (),
    advantages: Iterable[float] = (),
) -> None:
    """Writes trajectories as JSON lines, one an episode; the file appears whole or not at all.

    Texts of models and environments are escaped to ASCII, so that no control character reaches a reader's terminal.

    Args:
      path: such as `WORKDIR/rollouts/iteration_000012.jsonl`; its folder is made.
      trajectories: aborted ones are written too.
      steps: their `finished_steps`.
      advantages: one value a step.
    """
    credit = {(s.trajectory, s.step): float(value) for s, value in zip(steps, advantages, strict=True)}
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("w", encoding="ascii") as file:
            for place, trajectory in enumerate(trajectories):
                line = _as_json(trajectory)
                for number, turn in enumerate(line["turns"]):
                    if (place, number) in credit:
                        turn["advantage"] = credit[place, number]
                file.write(json.dumps(line) + "\n")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _as_json(trajectory: Trajectory) -> dict[str, Any]:
    return {
        "task": trajectory.task.id,
        "type": trajectory.task.type,
        "split": trajectory.task.split,
        "group": trajectory.group,
        "member": trajectory.member,
        "won": bool(trajectory.won),
        "score": float(trajectory.score),
        "aborted": trajectory.aborted,
        "reason": trajectory.reason,
        "turns": [_turn_as_json(turn) for turn in trajectory.turns],
    }


def _turn_as_json(turn: Turn) -> dict[str, Any]:
    high, low = anchor_hash(turn.anchor)
    return {
        "prompt": turn.prompt,
        "response": turn.response,
        "action": turn.action,
        "valid": turn.valid,
        "admissible": turn.admissible,
        "reward": float(turn.reward),
        "penalty": float(turn.penalty),
        "observation": turn.observation,
        "anchor": f"{high:08x}{low:08x}",
        "finish_reason": turn.finish_reason,
        "prompt_tokens": len(turn.prompt_tokens),
        "response_tokens": len(turn.response_tokens),
        "version": turn.version,
    }
