"""Results of evaluations: outcomes, summaries and records."""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gigpo_jax.core.proportion import Z95, wilson_interval
from gigpo_jax.devices.exchange import all_rows
from gigpo_jax.env_bridge.panels import Panel
from gigpo_jax.env_bridge.types import Task
from gigpo_jax.trajectory import Trajectory


@dataclass(frozen=True)
class Outcome:
    """How an episode ended.

    Attributes:
      task_type: `Task.kind` of its task, "" if it has none.
      won: Whether the task was done.
      score: Score of the environment at the end, in [0, 1].
      length: Number of steps.
      aborted: Whether the environment or the engine failed.
      policy_dependent: See `Trajectory`.
      environment: Label of the environment in `env.mix`, "" in a run with one.
    """

    task_type: str
    won: bool
    score: float
    length: int
    aborted: bool = False
    policy_dependent: bool = False
    environment: str = ""


def collect_outcomes(
    trajectories: Sequence[Trajectory], tasks: Sequence[Task], trials: int = 1
) -> list[Outcome]:
    """Gathers from all hosts how every task ended.

    A task is won if a trial is won. Its score is the score of the best trial, its length the steps
    of all of them.

    Args:
      trajectories: Trajectories of this host; group is the index of the task, member the number of
        the trial.
      tasks: Tasks of the panel.
      trials: Number of trials; later ones are left out.
    """
    rows = [
        (t.group, t.member, t.won, t.score, t.length, t.aborted, t.policy_dependent)
        for t in trajectories
    ]
    trials_by_task: dict[int, list[np.ndarray]] = defaultdict(list)
    # float64 holds all of these numbers exactly, and hosts exchange rows of one type.
    for index, member, *trial in all_rows(np.array(rows, np.float64).reshape(-1, 7)):
        if member < trials:
            trials_by_task[int(index)].append(trial)
    outcomes = []
    for index, task_trials in trials_by_task.items():
        won, scores, lengths, aborted, policy_dependent = zip(*task_trials, strict=True)
        outcome = Outcome(
            task_type=tasks[index].kind,
            # A trial that is won or aborted is the last one, so the last one tells.
            won=bool(won[-1]),
            score=max(scores),
            length=int(sum(lengths)),
            aborted=bool(aborted[-1]),
            policy_dependent=bool(policy_dependent[-1]),
            environment=tasks[index].environment,
        )
        outcomes.append(outcome)
    return outcomes


def summarise_outcomes(outcomes: Sequence[Outcome]) -> dict[str, dict[str, Any]]:
    """Sums up the outcomes of one policy on one panel.

    Args:
      outcomes: All outcomes; aborted ones are counted and otherwise left out.

    Returns:
      For "all", each environment of `env.mix` and each task type: episodes, aborted,
      aborted_policy_dependent (of the aborted), success_rate and score (fractions), their 95%
      intervals `success_interval` and `score_interval`, and the mean length in steps; for "all"
      also `type_average`, the unweighted mean of the success rates of the environments, else of the
      types.
    """
    by_name: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        # "" is the label of the only environment, and the type of tasks without one.
        for name in {"all", outcome.environment, outcome.task_type} - {""}:
            by_name[name].append(outcome)
    summary: dict[str, dict[str, Any]] = {}
    for name in sorted(by_name, key=lambda name: (name != "all", name)):
        summary[name] = _summarise_selection(by_name[name])
    if "all" in summary:
        averaged_names = {outcome.environment or outcome.task_type for outcome in outcomes}
        rates = [
            row["success_rate"]
            for name, row in summary.items()
            if name in averaged_names and row["episodes"]
        ]
        overall = summary["all"]
        overall["type_average"] = float(np.mean(rates)) if rates else overall["success_rate"]
    return summary


def _summarise_selection(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    # An aborted episode is not a lost one: the policy had no chance to win it.
    finished = [outcome for outcome in outcomes if not outcome.aborted]
    episodes = len(finished)
    successes = sum(outcome.won for outcome in finished)
    scores = [outcome.score for outcome in finished]
    lengths = [outcome.length for outcome in finished]
    return {
        "episodes": episodes,
        "aborted": len(outcomes) - episodes,
        "aborted_policy_dependent": sum(outcome.policy_dependent for outcome in outcomes),
        "success_rate": successes / episodes if episodes else 0.0,
        "success_interval": list(wilson_interval(successes, episodes)),
        "score": float(np.mean(scores)) if episodes else 0.0,
        "score_interval": list(mean_interval(scores)),
        "length": float(np.mean(lengths)) if episodes else 0.0,
    }


def panel_metrics(results: dict[str, list[Outcome]]) -> dict[str, float]:
    """Returns the outcomes by decoding as metrics `val/<decoding>/<name>`.

    Environments of `env.mix` have `val/<decoding>/<name>/<label>` too, and task types
    `val/<decoding>/success_rate/<type>`.
    """
    metrics: dict[str, float] = {}
    for decoding, outcomes in results.items():
        labels = {outcome.environment for outcome in outcomes}
        for selection, row in summarise_outcomes(outcomes).items():
            values = {"success_rate": row["success_rate"]}
            if selection == "all" or selection in labels:
                for name in ("score", "length", "aborted", "aborted_policy_dependent"):
                    values[name] = row[name]
                values["success_low"], values["success_high"] = row["success_interval"]
            if selection == "all":
                values["success_rate_type_average"] = row["type_average"]
            ending = "" if selection == "all" else f"/{selection}"
            for name, value in values.items():
                metrics[f"val/{decoding}/{name}{ending}"] = value
    return metrics


def panel_record(
    panel: Panel, tasks: Sequence[Task], iteration: int, results: dict[str, list[Outcome]]
) -> dict[str, Any]:
    """Returns the results task by task as JSON values, for comparisons between runs.

    An aborted episode is null.
    """
    return {
        "iteration": iteration,
        "panel": panel.name,
        "sha256": panel.sha256,
        "tasks": list_ids(tasks),
        "types": [task.kind for task in tasks],
        "results": {decoding: record_outcomes(outcomes) for decoding, outcomes in results.items()},
    }


def list_ids(tasks: Sequence[Task]) -> list[str]:
    """Returns the ids of tasks, which in `env.mix` begin with the label of the environment."""
    return ["/".join(filter(None, (task.environment, task.id))) for task in tasks]


def record_outcomes(outcomes: Sequence[Outcome]) -> dict[str, list[Any]]:
    """Returns success and score of every task as JSON values.

    An aborted episode is null, not false: a comparison of two runs leaves the task out.
    """
    return {
        "won": [None if outcome.aborted else outcome.won for outcome in outcomes],
        "score": [None if outcome.aborted else outcome.score for outcome in outcomes],
    }


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """Returns the 95% normal interval of a mean, or the mean twice for fewer than two values."""
    mean = float(np.mean(values)) if len(values) else 0.0
    if len(values) < 2:
        return mean, mean
    half = Z95 * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return mean - half, mean + half
