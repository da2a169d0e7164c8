"""Policy x environment -> trajectories: one coroutine per episode.

No episode waits for another; the engine batches the pending requests. Every request has its own
random key, so the trajectories depend neither on the number of workers nor on the order of answers.
"""

import asyncio
import functools
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from gigpo_jax.engines.base import request_key
from gigpo_jax.env_bridge.processes.pool import EnvPool
from gigpo_jax.env_bridge.types import EnvError, Task
from gigpo_jax.rollout.episode_parts import EpisodeJob
from gigpo_jax.rollout.groups import Group
from gigpo_jax.trajectory import BEGINNING, Past, Trajectory

if TYPE_CHECKING:
    from gigpo_jax.rollout.early_ends import EarlyEnd
    from gigpo_jax.rollout.episode import EpisodeRunner
    from gigpo_jax.rollout.harness import HarnessRunner
    from gigpo_jax.rollout.starts import Starts

Runner: TypeAlias = "EpisodeRunner | HarnessRunner"


class TooManyAborted(RuntimeError):
    """Too many episodes of a rollout were aborted, for the frequent reasons in the text."""


@dataclass(frozen=True)
class RolloutJob:
    """What is played as one rollout.

    Attributes:
      tasks: Task of each group, in order.
      group_size: Number of episodes of a task, >= 1.
      iteration: Part of every request's key; evaluations use negative numbers.
      first_group: Number of the first task's group; hosts that share an iteration number their
        groups from different starts.
      starts: Choice of the states in which the episodes of each group begin; with forks whole
        groups only. None: all begin with their task.
      ends: Rule for the early end of a group, and its replacement; None: whole groups.
      shares_texts: Whether parts of a group's episodes may share what the policy writes.
    """

    tasks: Sequence[Task]
    group_size: int
    iteration: int
    first_group: int = 0
    starts: "Starts | None" = None
    ends: "EarlyEnd | None" = None
    shares_texts: bool = False

    @property
    def forks(self) -> int:
        """Number of a group's last episodes, which begin when its other ones have ended."""
        return 0 if self.starts is None else self.starts.forks


async def rollout(
    job: RolloutJob, players: Mapping[str, tuple[Runner, EnvPool]]
) -> list[Trajectory]:
    """Plays the episodes of all groups, as many at once as the pools have environments.

    Args:
      job: Tasks, and how many episodes of each.
      players: Runner of the episodes and pool of environments, by `Task.environment`.

    Returns:
      Trajectories in the order of tasks, of groups of the same place, and of members; those that
      do not count are marked.

    Raises:
      TooManyAborted: more than `max_aborted_fraction` of all episodes were aborted.
      EngineLost: the engine will give no more responses.
    """
    state = _RolloutState(job, players)
    try:
        async with asyncio.TaskGroup() as coroutines:
            state.coroutines = coroutines
            for place, task in enumerate(job.tasks):
                state.start_group(place, job.first_group + place, task)
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None  # the first failure cancelled the others

    trajectories: list[Trajectory] = []
    for place in range(len(job.tasks)):
        for group in state.groups_by_place[place]:
            for trials in group.episodes:
                trajectories.extend(trials)
    return trajectories


@dataclass(eq=False)
class _RolloutState:
    """The groups of a rollout while their episodes are played.

    A place is a position in the rollout's tasks: the first group there, of this task, may be
    replaced by others. Other fields are the arguments of `rollout`.

    Attributes:
      coroutines: Coroutines of all members.
      groups_by_place: Groups of each place, in order.
      abort_reasons: Number of aborted episodes by reason.
    """

    job: RolloutJob
    players: Mapping[str, tuple[Runner, EnvPool]]
    coroutines: asyncio.TaskGroup = field(init=False)
    groups_by_place: dict[int, list[Group]] = field(default_factory=lambda: defaultdict(list))
    abort_reasons: Counter[str] = field(default_factory=Counter)

    def start_group(self, place: int, number: int, task: Task) -> None:
        """Starts the episodes of a group but its forks."""
        group = Group(number, task, episodes=[()] * self.job.group_size)
        self.groups_by_place[place].append(group)
        self.coroutines.create_task(self._begin_group(place, group))

    async def _begin_group(self, place: int, group: Group) -> None:
        _, pool = self.players[group.task.environment]
        starts = self.job.starts
        past = BEGINNING
        if starts is not None:
            past = await starts.begin_group(group.task, group.number, self.job.iteration, pool)
        # The coroutines start at the next await: all members of the group are in the list
        # before one ends.
        self._start_episodes(place, group, [past] * (self.job.group_size - self.job.forks))

    def _start_episodes(self, place: int, group: Group, starts: Sequence[Past]) -> None:
        for past in starts:
            member = len(group.coroutines)
            episode = self._play_member(place, group, member, past)
            group.coroutines.append(self.coroutines.create_task(episode))

    async def _play_member(self, place: int, group: Group, member: int, past: Past) -> None:
        runner, pool = self.players[group.task.environment]
        settings = runner.settings
        # Room for the trials of each episode: trial t of episode e is member e x trials + t.
        first_member = member * settings.trials
        job = EpisodeJob(
            group.task,
            group.number,
            first_member,
            key=functools.partial(request_key, settings.seed, self.job.iteration, group.number),
            past=past,
            shared=group.shared if self.job.shares_texts else None,
        )
        if settings.trials > 1:
            from gigpo_jax.rollout.trials import play_trials

            play = functools.partial(_play_trial, runner=runner, pool=pool)
            trials = await play_trials(job, settings.trials, play)
        else:
            trials = [await _play_trial(job, runner, pool)]
        # Before `end_early`, which cancels the members that have no entry. No await follows until
        # the end: one member alone sees the group complete, and replaces it.
        group.episodes[member] = tuple(trials)
        if trials[-1].aborted:
            self.abort_reasons[trials[-1].reason] += 1
            # Replacements count too: the fraction is of all episodes that were started.
            episodes = self.job.group_size * sum(map(len, self.groups_by_place.values()))
            _check_aborted(self.abort_reasons, episodes, settings.max_aborted_fraction)
        ends = self.job.ends
        if ends is not None:
            ends.end_early(group)
        self._start_forks(place, group)
        if ends is not None:
            replacements = len(self.groups_by_place[place]) - 1
            spare = ends.replace_group(self.job.first_group + place, group, replacements)
            if spare is not None:
                self.start_group(place, *spare)

    def _start_forks(self, place: int, group: Group) -> None:
        """Starts the forks of a group when the last one of its first episodes has ended."""
        starts = self.job.starts
        first_episodes = group.episodes[: self.job.group_size - self.job.forks]
        if starts and len(group.coroutines) < self.job.group_size and all(first_episodes):
            newest_trials = [trials[-1] for trials in first_episodes]
            pasts = starts.begin_forks(newest_trials, self.job.iteration)
            self._start_episodes(place, group, pasts)


def _check_aborted(reasons: Counter[str], episodes: int, max_fraction: float) -> None:
    """Raises TooManyAborted if more than this fraction of the episodes were aborted."""
    if reasons.total() > max_fraction * episodes:
        from gigpo_jax.rollout.aborts import describe_aborts

        raise TooManyAborted(describe_aborts(reasons, episodes))


async def _play_trial(job: EpisodeJob, runner: Runner, pool: EnvPool) -> Trajectory:
    """Plays a trial, and an aborted one once more with the same keys.

    If a process had failed, the second attempt gives the episode of an undisturbed run.
    """
    for replayed in (False, True):
        trajectory = await _play_attempt(job, runner, pool)
        trajectory.replayed = replayed
        # Both attempts are reported: an abort that was played again may still show a fault.
        if runner.on_attempt is not None:
            runner.on_attempt(trajectory)
        if not trajectory.aborted:
            break
    return trajectory


async def _play_attempt(job: EpisodeJob, runner: Runner, pool: EnvPool) -> Trajectory:
    """Plays an episode in an environment of the pool."""
    try:
        async with pool.episode() as environment:
            return await runner.play(job, environment)
    except EnvError as err:  # no worker is left
        trajectory = Trajectory(job.task, job.group, job.member, past=job.past)
        trajectory.abort(str(err), policy_dependent=False)
        return trajectory
