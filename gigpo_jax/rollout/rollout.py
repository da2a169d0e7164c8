"""Policy x environment -> trajectories: one coroutine per episode.

No episode waits for another; the engine batches the pending requests. Every request has its own random key, so the
trajectories depend neither on the number of workers nor on the order of answers.
"""

import asyncio
import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from gigpo_jax.env_bridge.pool import EnvPool
from gigpo_jax.env_bridge.types import EnvError, Task
from gigpo_jax.rollout.episode import Plan, Runner
from gigpo_jax.rollout.groups import WHOLE_GROUPS, GroupEnd, end_early, replaced
from gigpo_jax.sampling.base import request_key
from gigpo_jax.trajectory import Trajectory


class TooManyAborted(RuntimeError):
    """Too many episodes of a rollout were aborted; the text has the most frequent reasons."""


async def rollout(
    tasks: Sequence[Task],
    players: Mapping[str, tuple[Runner, EnvPool]],
    *,
    group_size: int,
    iteration: int,
    first_group: int = 0,
    pasts: Sequence[Sequence[str]] | None = None,
    ends: GroupEnd = WHOLE_GROUPS,
) -> list[Trajectory]:
    """Plays `group_size` episodes of every task, as many at once as the pools have environments.

    Args:
      tasks: one group each, in this order.
      players: for each `Task.environment` what plays an episode, and where.
      group_size: episodes a task, >= 1.
      iteration: part of every request's key; evaluations use negative numbers.
      first_group: number of the first task's group; hosts that share an iteration number theirs apart.
      pasts: for each task the actions that are replayed before the policy acts; None: none.
      ends: when a group ends, and what is then played in place of one without signal (`trajectory.gives_signal`).

    Returns:
      Trajectories in the order of tasks, groups in their place and members; those that do not count are marked.

    Raises:
      TooManyAborted: more than `max_aborted_fraction` of all episodes were aborted.
      EngineLost: the engine will give no more responses.
    """
    played: list[list[list[list[Trajectory]]]] = [[] for _ in tasks]  # tasks, groups in their place, episodes, trials
    tasks_of: list[list[asyncio.Task[None]]] = [[] for _ in tasks]  # of the newest group in each place
    reasons: Counter[str] = Counter()

    def start(place: int, number: int, task: Task) -> None:
        played[place].append([[] for _ in range(group_size)])
        tasks_of[place] = [running.create_task(episode(place, number, task, member)) for member in range(group_size)]

    async def episode(place: int, group: int, task: Task, member: int) -> None:
        runner, pool = players[task.environment]
        settings = runner.settings
        key = functools.partial(request_key, settings.seed, iteration, group)
        plan = Plan(task, group, member * settings.trials, key, past=pasts[place] if pasts else ())
        played[place][-1][member] = trials = await _trials(plan, runner, pool)
        if trials[-1].aborted:
            reasons[trials[-1].reason] += 1
            _check_aborted(reasons, group_size * sum(map(len, played)), settings.max_aborted_fraction)
        end_early(played[place][-1], ends.enough(group_size), task, group, tasks_of[place])
        left = ends.spares[place][len(played[place]) - 1 :] if ends.spares else ()
        if left and replaced(played[place][-1]):
            start(place, *left[0])

    try:
        async with asyncio.TaskGroup() as running:
            for place, task in enumerate(tasks):
                start(place, first_group + place, task)
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None  # the first failure cancelled the others
    return [trajectory for groups in played for group in groups for trials in group for trajectory in trials]


def _check_aborted(reasons: Counter[str], episodes: int, most: float) -> None:
    """Raises TooManyAborted if more than the fraction `most` of the episodes were aborted."""
    if reasons.total() > most * episodes:
        frequent = "; ".join(f"{count} x {reason}" for reason, count in reasons.most_common(3))
        raise TooManyAborted(f"{reasons.total()} of {episodes} episodes were aborted, too many to continue: {frequent}")


async def _trials(first: Plan, runner: Runner, pool: EnvPool) -> list[Trajectory]:
    """Plays an episode, and again until it is won or aborted or no trial is left.

    Every trial is a member of the group, with keys of its own: trial t of episode e is member e x trials + t. The plan
    of trial 0 is `first`.
    """
    trials: list[Trajectory] = []
    for trial in range(runner.settings.trials):
        plan = replace(
            first,
            member=first.member + trial,
            reflections=tuple(earlier.reflection for earlier in trials if earlier.reflection),
            reflection=runner.settings.reflection if trial + 1 < runner.settings.trials else None,
        )
        trials.append(await _play(plan, runner, pool))
        if trials[-1].aborted or trials[-1].won:
            break
    return trials


async def _play(plan: Plan, runner: Runner, pool: EnvPool) -> Trajectory:
    """Plays an episode, and again once, with the same keys, if it is aborted.

    If the failure was of a process, it becomes the episode that it would have been.
    """
    for replayed in (False, True):
        trajectory = await _attempt(plan, runner, pool)
        trajectory.replayed = replayed
        if runner.on_attempt is not None:
            runner.on_attempt(trajectory)
        if not trajectory.aborted:
            break
    return trajectory


async def _attempt(plan: Plan, runner: Runner, pool: EnvPool) -> Trajectory:
    """One attempt at an episode, in an environment of the pool."""
    try:
        async with pool.episode() as environment:
            return await runner.play(plan, environment)
    except EnvError as err:  # no worker is left
        trajectory = Trajectory(plan.task, plan.group, plan.member)
        trajectory.abort(str(err), policy_dependent=False)
        return trajectory
