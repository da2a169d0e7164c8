"""Groups of a rollout, and when they end."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from gigpo_jax.env_bridge.types import Task
from gigpo_jax.trajectory import Trajectory


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


class GroupEnd:
    """When a group ends, and what may replace it; here each ends with its last episode.

    Attributes:
      adds_groups: Whether a rollout may have more groups than tasks.
    """

    adds_groups = False

    def end_early(self, group: Group) -> None:
        """Cancels the running episodes of a group once they are not needed."""

    def replace_group(self, place: int, group: Group, replacements: int) -> tuple[int, Task] | None:
        """Returns number and task of the group that replaces an ended one; None: none does.

        Args:
          place: Index of the group's task in the rollout.
          group: Group, some of whose episodes may still be played.
          replacements: Number of earlier replacements at the place.
        """
        return None


WHOLE_GROUPS = GroupEnd()
