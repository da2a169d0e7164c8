"""The step that a page shows first: one whose credit is right, where a person sees why."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

READABLE_STEPS = (3, 8)  # taken in the same state: more are a long table
MAX_ADVANTAGE = 2.0  # an outlier is no better example


def find_example(episodes: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Finds the step of a task group that shows best how credit works.

    Several actions were taken in its state, and what followed its own action was worth more (or
    less) than what followed the other actions. Advantages, measurement and regret agree with that.

    Args:
      episodes: Content of the page, as from `data.summarize_groups`.

    Returns:
      Its place, `episode` and `step`, and a `score` to compare groups by; None if there is none.
    """
    states = defaultdict(list)
    for episode_index, episode in enumerate(episodes):
        for step_index, step in enumerate(episode["steps"]):
            if not episode["aborted"] and step["group"] is not None:
                states[step["group"]].append((episode_index, step_index, step))
    best = None
    for members in states.values():
        for episode_index, step_index, step in members:
            score = _score_step(step, [member for *_, member in members])
            if score and (best is None or score > best["score"]):
                best = {"score": round(score, 3), "episode": episode_index, "step": step_index}
    return best


def _score_step(step: Mapping[str, Any], members: Sequence[Mapping[str, Any]]) -> float:
    """How good an example a step is beside the other steps from its state; 0 if it is none."""
    # The return of a step, not the outcome of its episode: what came before is not its credit.
    own_returns = [member["return"] for member in members if member["action"] == step["action"]]
    other_returns = [member["return"] for member in members if member["action"] != step["action"]]
    if not other_returns or not step["valid"]:
        return 0.0
    gap = sum(own_returns) / len(own_returns) - sum(other_returns) / len(other_returns)
    # The page explains credit by this step, so both advantages must have the sign of the gap.
    if min(gap * (step["step"] or 0.0), gap * (step["total"] or 0.0)) <= 0:
        return 0.0
    # 1 if all that took this action got the most, and all others nothing.
    clearness = abs(gap) / max(abs(member["return"]) for member in members)
    score = clearness * min(abs(step["step"]), MAX_ADVANTAGE)
    if step["oracle"]:
        value, error = step["oracle"]
        # A measured advantage within its noise confirms nothing.
        if value * gap <= 0 or abs(value) < 2 * error:
            return 0.0
        # A confirmed example is worth more than a clearer one without a measurement.
        score *= 3
    if step["regret"] is not None:
        # Regret 0 is optimal play: a good action must have it, and a bad one must not.
        if (step["regret"] == 0) != (gap > 0):
            return 0.0
        score *= 1.5
    low, high = READABLE_STEPS
    if not low <= len(members) <= high:
        score /= 10
    # Two on each side: less of an accident.
    if min(len(own_returns), len(other_returns)) > 1:
        score *= 1.5
    # A good action among worse ones is easier to see than the reverse.
    return score if gap > 0 else 0.8 * score
