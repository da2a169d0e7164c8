"""What is said about aborted episodes."""

import re
from collections import Counter

from gigpo_jax.run import report
from gigpo_jax.trajectory import Trajectory

# Numbers and quoted text, in which two reasons of one kind differ.
_DETAIL = re.compile(r"\d+|'[^']*'|\"[^\"]*\"")


def describe_aborts(reasons: Counter[str], episodes: int) -> str:
    """Describes the aborted episodes of a rollout that cannot continue, in one line."""
    frequent = "; ".join(f"{count} x {reason}" for reason, count in reasons.most_common(3))
    return (
        f"{reasons.total()} of {episodes} episodes were aborted, too many to continue: {frequent}"
    )


def report_abort(trajectory: Trajectory, reported_kinds: set[str]) -> None:
    """Prints the reason of an aborted episode, unless one of its kind was printed before."""
    kind = _DETAIL.sub("", trajectory.reason)
    if kind not in reported_kinds:
        reported_kinds.add(kind)
        report.say(f"aborted an episode of task {trajectory.task.id}: {trajectory.reason}")
