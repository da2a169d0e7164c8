"""Where the episodes of a rollout begin: at the start of their task, or in a recorded state.

A recorded state is a `Past`: an episode replays its actions, then the policy acts (docs/forks.md).
"""

from collections.abc import Sequence

from gigpo_jax.env_bridge.processes.pool import EnvPool
from gigpo_jax.env_bridge.types import Task
from gigpo_jax.trajectory import BEGINNING, Past, Trajectory


class Starts:
    """Chooses where episodes begin, by the arguments alone; here all begin with their task.

    Attributes:
      forks: Number of a group's last episodes, which begin when its other ones have ended.
    """

    forks = 0

    async def begin_group(self, task: Task, group: int, iteration: int, pool: EnvPool) -> Past:
        """Chooses where all episodes of a group but the forks begin."""
        return BEGINNING

    def begin_forks(self, episodes: Sequence[Trajectory], iteration: int) -> list[Past]:
        """Chooses where the forks begin, given the group's other episodes."""
        return []
