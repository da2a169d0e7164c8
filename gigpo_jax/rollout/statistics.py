"""Numbers of an iteration's trajectories, over all hosts."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from gigpo_jax.env_bridge.types import Task
from gigpo_jax.run.partition import all_hosts
from gigpo_jax.trajectory import Step, Trajectory, finished_steps, gives_signal


def metrics_by_environment(trajectories: Sequence[Trajectory], tasks: Iterable[Task]) -> dict[str, float]:
    """`rollout_metrics` of all; with `env.mix` also of each environment, with its label as the name's third part.

    Args:
      trajectories: of this host, aborted and replaced ones included.
      tasks: of all hosts.
    """
    types = defaultdict(set)
    for task in tasks:
        types[task.environment].add(task.type)
    metrics = rollout_metrics(trajectories, finished_steps(trajectories), types.get("", ()))
    for label in sorted(filter(None, types)):
        own = [trajectory for trajectory in trajectories if trajectory.task.environment == label]
        for name, value in rollout_metrics(own, finished_steps(own), types[label]).items():
            group, what, *kind = name.split("/")
            metrics["/".join((group, what, label, *kind))] = value
    return metrics


def rollout_metrics(
    trajectories: Sequence[Trajectory], steps: Sequence[Step], task_types: Iterable[str]
) -> dict[str, float]:
    """Summarises a rollout over all hosts.

    Args:
      trajectories: of this host, aborted and replaced ones included.
      steps: their `finished_steps`.
      task_types: of the whole split, so that all hosts report the same names.

    Returns:
      Means over episodes or steps that were not aborted, those of replaced groups included, so that a success rate is
      that of the policy on tasks as they are drawn. A task type that was not played is left out.
    """
    done = [trajectory for trajectory in trajectories if not trajectory.aborted]
    turns = [turn for trajectory in done for turn in trajectory.turns]
    groups = defaultdict(list)
    for trajectory in trajectories:
        groups[trajectory.group].append(trajectory)
    listed = [turn.admissible for turn in turns if turn.admissible is not None]
    values: dict[str, Sequence[float]] = {
        "episode/success_rate": [t.won for t in done],
        "episode/score": [t.score for t in done],
        "episode/reward": [t.total_reward for t in done],
        "episode/length": [len(t.turns) for t in done],
        "episode/regret": [sum(turn.regret or 0.0 for turn in t.turns) for t in done if _tells_regret(t)],
        "action/valid_rate": [turn.valid for turn in turns],
        "action/admissible_rate": listed,
        "credit/ambiguous_anchor_share": ambiguous_anchors(steps),
        "response/length_mean": [len(turn.response_tokens) for turn in turns],
        "response/truncated_share": [turn.finish_reason == "length" for turn in turns],
        "prompt/length_mean": [len(turn.prompt_tokens) for turn in turns],
        "prompt/truncated_fraction": [turn.prompt_cut for turn in turns],
        "time/environment": [t.environment_s for t in done],
    }
    for kind in sorted(filter(None, task_types)):
        values[f"episode/success_rate/{kind}"] = [t.won for t in done if t.task.type == kind]
    totals = {
        "episode/aborted": float(sum(t.aborted and not t.unfinished for t in trajectories)),
        "episode/unfinished": float(sum(t.unfinished for t in trajectories)),
        "episode/aborted_policy_dependent": float(sum(t.policy_dependent for t in trajectories)),
        "episode/replayed": float(sum(t.replayed for t in trajectories)),
        "rollout/episodes": float(len(done)),
        "rollout/groups_without_signal": float(sum(not gives_signal(group) for group in groups.values())),
        "rollout/refilled_groups": float(sum(group[0].replaced for group in groups.values())),
        "rollout/steps": float(len(turns)),
        "rollout/generated_tokens": float(sum(len(turn.response_tokens) for turn in turns)),
    }
    sums = [[float(np.sum(v)), float(len(v))] for v in values.values()] + [[v, 1.0] for v in totals.values()]
    gathered = all_hosts(np.asarray(sums, np.float32)).sum(0)
    means = {name: total / count for name, (total, count) in zip(values, gathered, strict=False) if count}
    return means | {name: float(total) for name, (total, _) in zip(totals, gathered[len(values) :], strict=True)}


def ambiguous_anchors(steps: Sequence[Step]) -> list[bool]:
    """For every step with listed actions: does its anchor stand for more than one state of the environment?

    An anchor is ambiguous if the environment listed different actions at two steps of a task group that share it, such
    as "Nothing happens." in two places. Such steps are compared with each other although acting from them differs.
    """
    listed = [((s.group, s.turn.anchor), s.turn.choices) for s in steps if s.turn.choices is not None]
    seen = defaultdict(set)
    for anchor, choices in listed:
        seen[anchor].add(choices)
    return [len(seen[anchor]) > 1 for anchor, _ in listed]


def _tells_regret(trajectory: Trajectory) -> bool:
    return all(turn.regret is not None for turn in trajectory.turns)
