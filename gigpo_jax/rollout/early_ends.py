"""The rule by which groups end before their last episode and are replaced (docs/tasks.md)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gigpo_jax.env_bridge.types import Task
from gigpo_jax.rollout.groups import Group
from gigpo_jax.trajectory import Trajectory, has_contrast


@dataclass(frozen=True)
class EarlyEnd:
    """Ends groups early, and replaces the ones without contrast (`trajectory.has_contrast`).

    Attributes:
      fraction: Share of a group's episodes, above 0 and at most 1, that must end without being
        aborted; the remaining ones are cancelled then.
      spares: For each group of the iteration, by its number, the (group number, task) pairs that
        may replace it, in order, see `group_ends`; (): none.
    """

    fraction: float = 1.0
    spares: Sequence[Sequence[tuple[int, Task]]] = ()

    @property
    def adds_groups(self) -> bool:
        """Whether a rollout may have more groups than tasks."""
        return any(self.spares)

    def end_early(self, group: Group) -> None:
        """Cancels the running episodes once enough others have ended and were not aborted."""
        # `trials` is () for a member that still plays; the last trial tells how an episode ended.
        finished = sum(bool(trials) and not trials[-1].aborted for trials in group.episodes)
        if finished < math.ceil(self.fraction * len(group.episodes)):
            return
        for member, trials in enumerate(group.episodes):
            if trials:
                continue
            # On its way out the coroutine hands the environment back to the pool.
            group.coroutines[member].cancel()
            trajectory = Trajectory(group.task, group.number, member)
            reason = "enough other episodes of its group had ended"
            trajectory.abort(reason, policy_dependent=False)
            trajectory.unfinished = True
            # Each member has an entry at the end, whatever became of it.
            group.episodes[member] = (trajectory,)

    def replace_group(self, first: int, group: Group, replacements: int) -> tuple[int, Task] | None:
        """Returns number and task of the group in place of an ended one without contrast, or None.

        The spares are used in their order, so a run is repeatable whichever group ends first.
        Nothing is learnt from the last trials of the replaced group.

        Args:
          first: Number of the iteration's group in whose place this one is played.
          group: Group, some of whose episodes may still be played.
          replacements: Number of earlier replacements at the place.
        """
        spares = self.spares[first] if self.spares else ()
        newest_trials = [trials[-1] for trials in group.episodes if trials]
        has_ended = len(newest_trials) == len(group.episodes)
        if replacements >= len(spares) or not has_ended or has_contrast(newest_trials):
            return None
        for trajectory in newest_trials:
            trajectory.replaced = True
        return spares[replacements]
