"""Metrics of trajectories, over all hosts."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from gigpo_jax.devices.exchange import all_hosts
from gigpo_jax.env_bridge.types import Task
from gigpo_jax.trajectory import EARLIER, Step, Trajectory, finished_steps, has_contrast


def metrics_by_environment(
    trajectories: Sequence[Trajectory], tasks: Iterable[Task], turn_metrics: Sequence[str]
) -> dict[str, float]:
    """Returns `rollout_metrics` of all trajectories and, with `env.mix`, of each environment.

    The label of an environment is the third part of the metric's name.

    Args:
      trajectories: Trajectories of this host, aborted and replaced ones included.
      tasks: Tasks of all hosts.
      turn_metrics: See `rollout_metrics`.
    """
    types_by_label = defaultdict(set)
    for task in tasks:
        types_by_label[task.environment].add(task.type)
    metrics = rollout_metrics(trajectories, types_by_label.get("", ()), turn_metrics)
    for label in sorted(filter(None, types_by_label)):
        selection = [t for t in trajectories if t.task.environment == label]
        selected = rollout_metrics(selection, types_by_label[label], turn_metrics)
        for name, value in selected.items():
            section, quantity, *task_type = name.split("/")
            metrics["/".join((section, quantity, label, *task_type))] = value
    return metrics


def rollout_metrics(
    trajectories: Sequence[Trajectory],
    task_types: Iterable[str],
    turn_metrics: Sequence[str] = (),
) -> dict[str, float]:
    """Summarises a rollout over all hosts.

    Args:
      trajectories: Trajectories of this host, aborted and replaced ones included.
      task_types: Task types of the whole split, so that all hosts report the same names.
      turn_metrics: Names in `Turn.metrics`, the same on all hosts.

    Returns:
      Means over episodes or steps that were not aborted, replaced groups included, so that a
      success rate is the policy's on tasks as they are drawn. Metrics of episodes leave out
      episodes that begin in states of other episodes; metrics of actions and lengths of
      episodes leave out texts. A task type that was not played is left out.
    """
    # Replaced groups stay in: the success rate is of tasks as drawn, not of groups with contrast.
    finished = [trajectory for trajectory in trajectories if not trajectory.aborted]
    all_turns = [turn for trajectory in finished for turn in trajectory.turns]
    turns = [turn for turn in all_turns if not turn.is_text]
    # A text that several episodes share is one response.
    texts = {id(turn): turn for turn in all_turns if turn.is_text}
    responses = [*turns, *texts.values()]
    # Forks and earlier starts begin in chosen states: they do not show the policy on its tasks.
    forks = [t for t in finished if t.is_forked]
    earlier = [t for t in finished if t.past.source == EARLIER]
    whole = [t for t in finished if not t.is_forked and t.past.source != EARLIER]
    samples: dict[str, Sequence[float]] = {
        "episode/success_rate": [t.won for t in whole],
        "episode/score": [t.score for t in whole],
        "episode/reward": [t.total_reward for t in whole],
        "episode/length": [t.length for t in whole],
        "episode/regret": [
            sum(turn.regret or 0.0 for turn in t.turns) for t in whole if _has_regret(t)
        ],
        "action/valid_rate": [turn.valid for turn in turns],
        "action/admissible_rate": [t.admissible for t in turns if t.admissible is not None],
        "credit/ambiguous_anchor_share": ambiguous_anchors(finished_steps(trajectories)),
        "response/length_mean": [len(turn.response_tokens) for turn in responses],
        "response/truncated_share": [turn.finish_reason == "length" for turn in responses],
        "prompt/length_mean": [len(turn.prompt_tokens) for turn in responses],
        "prompt/truncated_fraction": [turn.prompt_cut for turn in responses],
        "time/environment": [t.environment_s for t in finished],
        "rollout/earlier_depth": [len(t.past.actions) for t in earlier],
        "rollout/earlier_success_rate": [t.won for t in earlier],
        "rollout/fork_depth": [len(t.past.actions) for t in forks],
        "rollout/fork_success_rate": [t.won for t in forks],
    }
    for name in turn_metrics:
        samples[name] = [turn.metrics[name] for turn in turns if name in turn.metrics]
    for task_type in sorted(filter(None, task_types)):
        samples[f"episode/success_rate/{task_type}"] = [
            t.won for t in whole if t.task.type == task_type
        ]

    discarded_tokens = sum(sum(t.discarded) for t in finished)
    counts = _count_episodes(trajectories) | {
        "rollout/steps": len(turns),
        "rollout/summaries": len(texts),
        "rollout/discarded_responses": sum(len(t.discarded) for t in finished),
        "rollout/discarded_tokens": discarded_tokens,
        "rollout/generated_tokens": discarded_tokens
        + sum(len(turn.response_tokens) for turn in responses),
    }
    return _combine_hosts(samples, counts)


def _count_episodes(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Returns the numbers of episodes and groups of each kind, aborted ones included."""
    finished = [trajectory for trajectory in trajectories if not trajectory.aborted]
    groups = defaultdict(list)
    for trajectory in trajectories:
        groups[trajectory.group].append(trajectory)
    return {
        # Unfinished episodes are marked as aborted too, but nothing failed in them.
        "episode/aborted": sum(t.aborted and not t.unfinished for t in trajectories),
        "episode/unfinished": sum(t.unfinished for t in trajectories),
        "episode/aborted_policy_dependent": sum(t.policy_dependent for t in trajectories),
        "episode/replayed": sum(t.replayed for t in trajectories),
        "rollout/episodes": len(finished),
        "rollout/forks": sum(t.is_forked for t in finished),
        "rollout/earlier_starts": sum(t.past.source == EARLIER for t in finished),
        "rollout/saved_tokens": sum(t.past.tokens for t in finished if t.is_forked),
        "rollout/groups_without_contrast": sum(not has_contrast(g) for g in groups.values()),
        "rollout/refilled_groups": sum(group[0].replaced for group in groups.values()),
    }


def _combine_hosts(
    samples: Mapping[str, Sequence[float]], counts: Mapping[str, float]
) -> dict[str, float]:
    """Returns means of samples and sums of counts over all hosts; a mean of nothing is left out."""
    # One exchange for everything: the sums of the samples, their sizes, and the counts.
    local = [float(np.sum(values)) for values in samples.values()]
    local += [len(values) for values in samples.values()]
    local += counts.values()
    # jax exchanges 32-bit numbers: counts are exact up to 2^24.
    totals = all_hosts(np.asarray(local, np.float32)).sum(0)
    sums, sizes, total_counts = np.split(totals, [len(samples), 2 * len(samples)])
    metrics = {}
    for name, total, size in zip(samples, sums, sizes, strict=True):
        # A mean of nothing would be NaN in every logger.
        if size:
            metrics[name] = total / size
    for name, total in zip(counts, total_counts, strict=True):
        metrics[name] = float(total)
    return metrics


def ambiguous_anchors(steps: Sequence[Step]) -> list[bool]:
    """Whether each step's anchor stands for more than one state.

    The result is for the steps with listed actions alone. An anchor is ambiguous if the environment
    listed different actions at two steps of a task group that share it, such as "Nothing happens."
    in two places. Such steps are compared with each other although acting from them differs.
    """
    # Environments that list no actions give no evidence for or against their anchors.
    listing_steps = [step for step in steps if step.turn.choices is not None]
    anchors = [(step.episode.group, step.turn.anchor) for step in listing_steps]
    choices_by_anchor = defaultdict(set)
    for step, anchor in zip(listing_steps, anchors, strict=True):
        choices_by_anchor[anchor].add(step.turn.choices)
    return [len(choices_by_anchor[anchor]) > 1 for anchor in anchors]


def _has_regret(trajectory: Trajectory) -> bool:
    return all(turn.regret is not None or turn.is_text for turn in trajectory.turns)
