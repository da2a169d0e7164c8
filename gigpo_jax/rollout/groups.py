"""Groups of a rollout: their episodes, their early end, and their replacement."""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from gigpo_jax.env_bridge.types import Task
from gigpo_jax.trajectory import Trajectory, has_contrast


@dataclass(frozen=True)
class GroupEnd:
    """When a group ends, and what may replace it.

    Attributes:
      fraction: Share of its episodes, above 0 and at most 1, that must end without being aborted;
        the remaining ones are cancelled then.
      spares: For each task the (group number, task) pairs that may replace its group, in order,
        see `tasks.spare_groups`; (): none.
    """

    fraction: float = 1.0
    spares: Sequence[Sequence[tuple[int, Task]]] = ()

    def required_episodes(self, group_size: int) -> int:
        """Number of finished episodes that ends a group."""
        return math.ceil(self.fraction * group_size)


WHOLE_GROUPS = GroupEnd()


@dataclass(eq=False)
class Group:
    """The episodes of one task while they are played.

    Attributes:
      number: Group number; part of every request's key.
      task: Task of all episodes.
      episodes: Trials of each member in order; () until the member has ended.
      coroutines: Running coroutine of each member.
      shared: What parts of its episodes share, by name.
    """

    number: int
    task: Task
    episodes: list[tuple[Trajectory, ...]]
    coroutines: list[asyncio.Task[None]] = field(default_factory=list)
    shared: dict[Any, Any] = field(default_factory=dict)

    def end_early(self, required_episodes: int) -> None:
        """Cancels the running episodes once enough others have ended and were not aborted."""
        # `trials` is () for a member that still plays; the last trial tells how an episode ended.
        finished = sum(bool(trials) and not trials[-1].aborted for trials in self.episodes)
        if finished < required_episodes:
            return
        for member, trials in enumerate(self.episodes):
            if trials:
                continue
            # On its way out the coroutine hands the environment back to the pool.
            self.coroutines[member].cancel()
            trajectory = Trajectory(self.task, self.number, member)
            trajectory.leave_unfinished()
            # Each member has an entry at the end, whatever became of it.
            self.episodes[member] = (trajectory,)

    def needs_replacement(self) -> bool:
        """Returns whether all episodes have ended and their last trials have no contrast."""
        newest_trials = [trials[-1] for trials in self.episodes if trials]
        return len(newest_trials) == len(self.episodes) and not has_contrast(newest_trials)

    def mark_replaced(self) -> None:
        """Marks the last trials: nothing is learnt from them."""
        for trials in self.episodes:
            trials[-1].replaced = True
