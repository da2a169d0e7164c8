"""States of episodes in which other episodes begin."""

from collections.abc import Mapping

from gigpo_jax.env_bridge.processes.pool import EnvPool
from gigpo_jax.env_bridge.types import Task
from gigpo_jax.rollout.starts import Starts
from gigpo_jax.trajectory import BEGINNING, Past, Trajectory


class RecordedStarts(Starts):
    """Begins groups in states that are known before the rollout."""

    def __init__(self, pasts: Mapping[int, Past]) -> None:
        """Takes the states by the number of the group; other groups begin with their task."""
        self.pasts = pasts

    async def begin_group(self, task: Task, group: int, iteration: int, pool: EnvPool) -> Past:
        """Finds the state of the group."""
        return self.pasts.get(group, BEGINNING)


def past_before(episode: Trajectory, number: int, source: str) -> Past:
    """Records the state before a turn, for episodes that the key `source` begins there."""
    past = episode.past
    earlier_turns = episode.turns[:number]
    turn = episode.turns[number]
    return Past(
        past.actions + tuple(earlier.action for earlier in earlier_turns),
        (turn.observation, turn.anchor),
        past.reward + sum(earlier.reward for earlier in earlier_turns),
        past.tokens + sum(len(earlier.response_tokens) for earlier in earlier_turns),
        source=source,
    )
