"""What becomes of a rollout with aborted episodes."""

import re
from collections import Counter

from gigpo_jax.rollout.rollout import TooManyAborted
from gigpo_jax.run import report
from gigpo_jax.trajectory import Trajectory

# Numbers and quoted text, in which two reasons of one kind differ.
_DETAIL = re.compile(r"\d+|'[^']*'|\"[^\"]*\"")


def check_aborted(reasons: Counter[str], episodes: int, max_fraction: float) -> None:
    """Checks that not too many episodes were aborted.

    Raises:
      TooManyAborted: more than this fraction of the episodes were aborted.
    """
    if reasons.total() > max_fraction * episodes:
        frequent = "; ".join(f"{count} x {reason}" for reason, count in reasons.most_common(3))
        raise TooManyAborted(
            f"{reasons.total()} of {episodes} episodes were aborted, too many to continue: "
            f"{frequent}"
        )


def report_abort(trajectory: Trajectory, reported_kinds: set[str]) -> None:
    """Prints the reason of an aborted episode, unless one of its kind was printed before."""
    kind = _DETAIL.sub("", trajectory.reason)
    if kind not in reported_kinds:
        reported_kinds.add(kind)
        report.say(f"aborted an episode of task {trajectory.task.id}: {trajectory.reason}")
