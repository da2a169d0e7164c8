"""Several trials of an episode, until one is won."""

from dataclasses import replace

from gigpo_jax.env_bridge.processes.pool import EnvPool
from gigpo_jax.rollout.episode_parts import EpisodeJob
from gigpo_jax.rollout.rollout import Runner, play_trial
from gigpo_jax.trajectory import Trajectory


async def play_trials(first_job: EpisodeJob, runner: Runner, pool: EnvPool) -> list[Trajectory]:
    """Plays trials of an episode until one is won.

    An aborted trial, or the last one, ends it too. Every trial is a member of the group, with its
    own keys: trial t of episode e is member e x trials + t. `first_job` is the job of trial 0.
    """
    trials: list[Trajectory] = []
    for number in range(runner.settings.trials):
        is_last = number + 1 == runner.settings.trials
        job = replace(
            first_job,
            member=first_job.member + number,
            earlier_trials=tuple(trials),
            is_last_trial=is_last,
        )
        trajectory = await play_trial(job, runner, pool)
        trials.append(trajectory)
        if trajectory.aborted or trajectory.won:
            break
    return trials
