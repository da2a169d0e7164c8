"""Policy x environment -> trajectories: one coroutine per episode.

No episode waits for another; the engine batches the pending requests. Every request has its own
random key, so the trajectories depend neither on the number of workers nor on the order of answers.
"""

import asyncio
import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from gigpo_jax.engines.base import request_key
from gigpo_jax.env_bridge.processes.pool import EnvPool
from gigpo_jax.env_bridge.types import EnvError, Task
from gigpo_jax.rollout.episode import Runner
from gigpo_jax.rollout.episode_parts import REFLECTION, EpisodePlan
from gigpo_jax.rollout.forks import NO_FORKS, Forking
from gigpo_jax.rollout.groups import WHOLE_GROUPS, Group, GroupEnd
from gigpo_jax.trajectory import BEGINNING, Past, Trajectory


class TooManyAborted(RuntimeError):
    """Too many episodes of a rollout were aborted, for the frequent reasons in the text."""


async def rollout(
    tasks: Sequence[Task],
    players: Mapping[str, tuple[Runner, EnvPool]],
    *,
    group_size: int,
    iteration: int,
    first_group: int = 0,
    pasts: Sequence[Past] | None = None,
    ends: GroupEnd = WHOLE_GROUPS,
    forking: Forking = NO_FORKS,
    shares_texts: bool = False,
) -> list[Trajectory]:
    """Plays `group_size` episodes of every task, as many at once as the pools have environments.

    Args:
      tasks: Task of each group, in order.
      players: Runner of the episodes and pool of environments, by `Task.environment`.
      group_size: Number of episodes of a task, >= 1.
      iteration: Part of every request's key; evaluations use negative numbers.
      first_group: Number of the first task's group; hosts that share an iteration number their
        groups from different starts.
      pasts: Actions of each task that are replayed before the policy acts; None: none.
      ends: Rule for the end of a group, and the replacement of one without signal
        (`trajectory.gives_signal`).
      forking: Number of the `group_size` episodes that begin in states of the others, once these
        have ended, and how the states are chosen. Whole groups only.
      shares_texts: Whether parts of a group's episodes may share what the policy writes.

    Returns:
      Trajectories in the order of tasks, of groups of the same place, and of members; those that
      do not count are marked.

    Raises:
      TooManyAborted: more than `max_aborted_fraction` of all episodes were aborted.
      EngineLost: the engine will give no more responses.
    """
    groups_by_task: list[list[Group]] = [[] for _ in tasks]
    abort_reasons: Counter[str] = Counter()
    first_episodes = group_size - forking.number

    def start_group(place: int, number: int, task: Task) -> None:
        # The coroutines start at the next await: all members of the group are in the list
        # before one ends.
        group = Group(number, task, episodes=[()] * group_size)
        groups_by_task[place].append(group)
        start_episodes(place, group, [pasts[place] if pasts else BEGINNING] * first_episodes)

    def start_episodes(place: int, group: Group, starts: Sequence[Past]) -> None:
        for past in starts:
            member = len(group.coroutines)
            episode = play_member(place, group, member, past)
            group.coroutines.append(coroutines.create_task(episode))

    async def play_member(place: int, group: Group, member: int, past: Past) -> None:
        runner, pool = players[group.task.environment]
        settings = runner.settings
        # Room for the trials of each episode: trial t of episode e is member e x trials + t.
        first_member = member * settings.trials
        plan = EpisodePlan(
            group.task,
            group.number,
            first_member,
            key=functools.partial(request_key, settings.seed, iteration, group.number),
            past=past,
            shared=group.shared if shares_texts else None,
        )
        trials = await _play_trials(plan, runner, pool)
        # Before `end_early`, which cancels the members that have no entry. No await follows until
        # the end: one member alone sees the group complete, and replaces it.
        group.episodes[member] = tuple(trials)
        if trials[-1].aborted:
            abort_reasons[trials[-1].reason] += 1
            # Replacements count too: the fraction is of all episodes that were started.
            episodes = group_size * sum(len(groups) for groups in groups_by_task)
            _check_aborted(abort_reasons, episodes, settings.max_aborted_fraction)
        group.end_early(ends.required_episodes(group_size))
        # The last one of the first episodes starts the forks. Their states follow from these
        # episodes alone, whichever ended last.
        if len(group.coroutines) < group_size and all(group.episodes[:first_episodes]):
            newest_trials = [trials[-1] for trials in group.episodes[:first_episodes]]
            seed = (settings.seed, iteration, group.number)
            from gigpo_jax.rollout.fork_starts import choose_pasts

            start_episodes(place, group, choose_pasts(forking, newest_trials, seed))

        replacements = len(groups_by_task[place]) - 1
        # The spares of a place are used in their order, so a run is repeatable whichever
        # group ends first.
        spares = ends.spares[place] if ends.spares else ()
        if replacements < len(spares) and group.needs_replacement():
            group.mark_replaced()
            number, task = spares[replacements]
            start_group(place, number, task)

    try:
        async with asyncio.TaskGroup() as coroutines:
            for place, task in enumerate(tasks):
                start_group(place, first_group + place, task)
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None  # the first failure cancelled the others

    trajectories: list[Trajectory] = []
    for groups in groups_by_task:
        for group in groups:
            for trials in group.episodes:
                trajectories.extend(trials)
    return trajectories


def _check_aborted(reasons: Counter[str], episodes: int, max_fraction: float) -> None:
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


async def _play_trials(first_plan: EpisodePlan, runner: Runner, pool: EnvPool) -> list[Trajectory]:
    """Plays trials of an episode until one is won.

    An aborted trial, or the last one, ends it too. Every trial is a member of the group, with its
    own keys: trial t of episode e is member e x trials + t. `first_plan` is the plan of trial 0.
    """
    trials: list[Trajectory] = []
    for number in range(runner.settings.trials):
        is_last = number + 1 == runner.settings.trials
        plan = replace(
            first_plan,
            member=first_plan.member + number,
            reflections=tuple(
                trial.notes[REFLECTION] for trial in trials if trial.notes.get(REFLECTION)
            ),
            is_last_trial=is_last,
        )
        trajectory = await _play_trial(plan, runner, pool)
        trials.append(trajectory)
        if trajectory.aborted or trajectory.won:
            break
    return trials


async def _play_trial(plan: EpisodePlan, runner: Runner, pool: EnvPool) -> Trajectory:
    """Plays a trial, and an aborted one once more with the same keys.

    If a process had failed, the second attempt gives the episode of an undisturbed run.
    """
    for replayed in (False, True):
        trajectory = await _play_attempt(plan, runner, pool)
        trajectory.replayed = replayed
        # Both attempts are reported: an abort that was played again may still show a fault.
        if runner.on_attempt is not None:
            runner.on_attempt(trajectory)
        if not trajectory.aborted:
            break
    return trajectory


async def _play_attempt(plan: EpisodePlan, runner: Runner, pool: EnvPool) -> Trajectory:
    """Plays an episode in an environment of the pool."""
    try:
        async with pool.episode() as environment:
            return await runner.play(plan, environment)
    except EnvError as err:  # no worker is left
        trajectory = Trajectory(plan.task, plan.group, plan.member, past=plan.past)
        trajectory.abort(str(err), policy_dependent=False)
        return trajectory
