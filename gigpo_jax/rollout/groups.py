"""The end of a task's group in a rollout: before its last episodes, or with another group in its place."""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass

from gigpo_jax.env_bridge.types import Task
from gigpo_jax.trajectory import Trajectory, gives_signal


@dataclass(frozen=True)
class GroupEnd:
    """When the group of a task ends, and what may follow it.

    Attributes:
      fraction: of its episodes, above 0 and at most 1, that must end and not be aborted; the others are cancelled then.
      spares: for each task the (group number, task) that may take its place, as from `tasks.spare_groups`; (): none.
    """

    fraction: float = 1.0
    spares: Sequence[Sequence[tuple[int, Task]]] = ()

    def enough(self, size: int) -> int:
        """Of so many episodes, those that end a group."""
        return math.ceil(self.fraction * size)


WHOLE_GROUPS = GroupEnd()


def end_early(
    episodes: Sequence[list[Trajectory]], enough: int, task: Task, group: int, running: Sequence[asyncio.Task[None]]
) -> None:
    """Cancels and marks the episodes of a group, given as their trials, that run when `enough` have ended unaborted."""
    if sum(bool(trials) and not trials[-1].aborted for trials in episodes) < enough:
        return
    for member, trials in enumerate(episodes):
        if not trials:
            running[member].cancel()
            trials.append(Trajectory(task, group, member))
            trials[-1].leave_unfinished()


def replaced(group: Sequence[Sequence[Trajectory]]) -> bool:
    """Whether all episodes of a group, given as their trials, have ended without signal; they are marked then."""
    newest = [trials[-1] for trials in group if trials]
    if len(newest) < len(group) or gives_signal(newest):
        return False
    for trajectory in newest:
        trajectory.replaced = True
    return True
