"""Several trials of an episode, until one is won."""

from collections.abc import Awaitable, Callable
from dataclasses import replace

from gigpo_jax.rollout.episode_parts import EpisodeJob
from gigpo_jax.trajectory import Trajectory


async def play_trials(
    first_job: EpisodeJob, count: int, play: Callable[[EpisodeJob], Awaitable[Trajectory]]
) -> list[Trajectory]:
    """Plays at most `count` trials of an episode until one is won.

    An aborted trial, or the last one, ends it too. Every trial is a member of the group, with its
    own keys: trial t of episode e is member e x trials + t. `first_job` is the job of trial 0,
    `play` plays one.
    """
    trials: list[Trajectory] = []
    for number in range(count):
        job = replace(
            first_job,
            member=first_job.member + number,
            earlier_trials=tuple(trials),
            is_last_trial=number + 1 == count,
        )
        trajectory = await play(job)
        trials.append(trajectory)
        if trajectory.aborted or trajectory.won:
            break
    return trials
