"""Groups that end before their last episode, and groups that are replaced (docs/tasks.md)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gigpo_jax.env_bridge.types import Task
from gigpo_jax.rollout.draws import (
    ALONE,
    assign_environments,
    draw_of_environment,
)
from gigpo_jax.rollout.groups import Group
from gigpo_jax.trajectory import Trajectory, has_contrast


@dataclass(frozen=True)
class EarlyEnd:
    """Ends groups early, and replaces the ones without contrast (`trajectory.has_contrast`).

    Attributes:
      fraction: Share of a group's episodes, above 0 and at most 1, that must end without being
        aborted; the remaining ones are cancelled then.
      spares: For each task the (group number, task) pairs that may replace its group, in order,
        see `spare_groups`; (): none.
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

    def replace_group(self, place: int, group: Group, replacements: int) -> tuple[int, Task] | None:
        """Returns number and task of the group in place of an ended one without contrast, or None.

        The spares are used in their order, so a run is repeatable whichever group ends first.
        Nothing is learnt from the last trials of the replaced group.

        Args:
          place: Index of the group's task in the rollout.
          group: Group, some of whose episodes may still be played.
          replacements: Number of earlier replacements at the place.
        """
        spares = self.spares[place] if self.spares else ()
        newest_trials = [trials[-1] for trials in group.episodes if trials]
        has_ended = len(newest_trials) == len(group.episodes)
        if replacements >= len(spares) or not has_ended or has_contrast(newest_trials):
            return None
        for trajectory in newest_trials:
            trajectory.replaced = True
        return spares[replacements]


def spare_groups(
    tasks: Sequence[Task],
    iteration: int,
    groups: int,
    spares: int,
    seed: int,
    weights: np.ndarray | None = None,
    shares: Mapping[str, float] = ALONE,
) -> list[list[tuple[int, Task]]]:
    """Returns spare groups that may replace groups of an iteration.

    For each of the `groups` these are group numbers and tasks, in order. They are of the same
    environment and come from their own orders, so the tasks of `draw_tasks` stay the same. A pure
    function as well: the spare groups of one group do not depend on the results of the other
    groups.
    """
    labels, earlier_groups = assign_environments(iteration, groups, seed, shares)
    replacements: list[list[tuple[int, Task]]] = [[] for _ in labels]
    for label in dict.fromkeys(labels):
        places = [place for place, assigned in enumerate(labels) if assigned == label]
        # 1 keeps these orders apart from those of `draw_tasks`.
        start = earlier_groups[label] * spares
        count = len(places) * spares
        drawn = draw_of_environment(tasks, label, iteration, (seed, 1), weights, start, count)
        for number, place in enumerate(places):
            replacements[place] = [
                # Numbers behind those of the iteration's groups, distinct by place and round:
                # so are the keys.
                (groups * (1 + round_number) + place, task)
                for round_number, task in enumerate(drawn[number :: len(places)])
            ]
    return replacements
