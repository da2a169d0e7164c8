"""A policy on a frozen panel of tasks: success and score with 95% intervals, over all and per task type."""

import math
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from gigpo_jax.trajectory import Trajectory

Z95 = 1.959963984540054  # the 97.5% quantile of the normal distribution


def wilson_interval(successes: int, trials: int) -> tuple[float, float]:
    """The 95% Wilson score interval of a proportion.

    Args:
      successes: how often it happened.
      trials: out of how many.

    Returns:
      Lower and upper bound; (0, 1) without trials.

    Source: Wilson 1927; Brown, Cai, DasGupta 2001, equation 4.
    """
    if trials == 0:
        return 0.0, 1.0
    share, z2 = successes / trials, Z95 * Z95
    centre = (share + z2 / (2 * trials)) / (1 + z2 / trials)
    half = Z95 * math.sqrt(share * (1 - share) / trials + z2 / (4 * trials * trials)) / (1 + z2 / trials)
    return max(0.0, centre - half), min(1.0, centre + half)


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95% normal interval of a mean; the mean itself twice for fewer than two values."""
    mean = float(np.mean(values)) if len(values) else 0.0
    half = Z95 * float(np.std(values, ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return mean - half, mean + half


def summarise(trajectories: Sequence[Trajectory]) -> dict[str, dict[str, float | list[float]]]:
    """Sums up finished episodes.

    Args:
      trajectories: of one policy and one panel; aborted ones are counted and otherwise left out.

    Returns:
      For "all" and each task type: episodes, aborted, success_rate and score (shares), their 95% intervals
      `success_interval` and `score_interval`, and the mean length in steps.
    """
    by_type: dict[str, list[Trajectory]] = defaultdict(list)
    for trajectory in trajectories:
        by_type["all"].append(trajectory)
        if trajectory.task.type:
            by_type[trajectory.task.type].append(trajectory)
    result = {}
    for name in sorted(by_type, key=lambda name: (name != "all", name)):
        done = [trajectory for trajectory in by_type[name] if not trajectory.aborted]
        won, scores = sum(t.won for t in done), [t.score for t in done]
        result[name] = {
            "episodes": len(done),
            "aborted": len(by_type[name]) - len(done),
            "success_rate": won / len(done) if done else 0.0,
            "success_interval": list(wilson_interval(won, len(done))),
            "score": float(np.mean(scores)) if done else 0.0,
            "score_interval": list(mean_interval(scores)),
            "length": float(np.mean([len(t.turns) for t in done])) if done else 0.0,
        }
    return result


def table(results: dict[str, dict[str, dict]]) -> str:
    """A Markdown table of `summarise` results by decoding, such as {"temperature 0.4": ..., "greedy": ...}."""
    lines = ["| decoding | task type | episodes | success % | 95% | score | steps |", "|---|---|---|---|---|---|---|"]
    for decoding, summary in results.items():
        for name, row in summary.items():
            low, high = row["success_interval"]
            lines.append(
                f"| {decoding} | {name} | {row['episodes']} | {100 * row['success_rate']:.1f} | "
                f"{100 * low:.1f} to {100 * high:.1f} | {row['score']:.3f} | {row['length']:.1f} |"
            )
    return "\n".join(lines)
