"""One host of two, a program that tests/test_hosts.py starts twice: `two_hosts.py INDEX PORT`;
prints what it finds.
"""

import asyncio
import atexit
import json
import os
import sys
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from gigpo_jax import run
from gigpo_jax.config import default_config, resolve
from gigpo_jax.core.errors import InputError
from gigpo_jax.devices.exchange import all_rows
from gigpo_jax.devices.memory import check_memory
from gigpo_jax.env_bridge.types import Task
from gigpo_jax.learner.credit import step_credit
from gigpo_jax.learner.objective import make_objective
from gigpo_jax.methods.slea.experience import LESSON, choose_episodes, join_lessons
from gigpo_jax.models.published import PUBLISHED
from gigpo_jax.modes.train import Trainer
from gigpo_jax.rollout.earlier_starts import EarlierStarts
from gigpo_jax.rollout.evaluator import Evaluator
from gigpo_jax.rollout.results import collect_outcomes, panel_metrics, summarise_outcomes
from gigpo_jax.rollout.rollout import RolloutJob
from gigpo_jax.run.hosts import Hosts, HostsStopped, Stop, open_hosts
from gigpo_jax.trajectory import Trajectory, finished_steps
from tests.turns import make_turn

TASKS = [Task(f"task {n}", ("heat", "cool")[n % 2], "valid") for n in range(7)]


def episode(task: Task, group: int, member: int = 0) -> Trajectory:
    """An episode that is a function of its group and member."""
    rng = np.random.default_rng((group, member))
    turns = []
    for _ in range(rng.integers(1, 6)):
        reward = float(rng.normal())
        anchor = f"state {rng.integers(3)}"
        turns.append(make_turn(anchor=anchor, reward=reward, penalty=0.1))
    score = float(rng.random())
    return Trajectory(
        task, group, member, turns, score > 0.3, score, aborted=(group, member) == (1, 0)
    )


class Replay:
    """In place of a rollout worker: the episodes above."""

    async def play(self, job: RolloutJob, **_: object) -> list[Trajectory]:
        return [
            episode(task, job.first_group + n, trial)
            for n, task in enumerate(job.tasks)
            for trial in range(n % 3 + 1)
        ]


def found(groups: range) -> dict:
    """What a host finds that has some of five groups, of 2 to 6 episodes, and its share of a panel
    of 7 tasks.
    """
    config = default_config()
    config.rl.algorithm = "reinforce_pp"
    config = resolve(config)
    trajectories = [
        episode(TASKS[group], group, member) for group in groups for member in range(group + 2)
    ]
    metrics_of_credit, credit = step_credit(
        config, make_objective(config).advantages, finished_steps(trajectories), {}
    )
    for trajectory, _ in choose_episodes(trajectories, all_rows):
        trajectory.notes[LESSON] = f"{trajectory.group}, {trajectory.member}"
    starts = EarlierStarts(config, TASKS)
    starts.add(trajectories, 0)
    evaluator = Evaluator(config, Replay(), TASKS)  # type: ignore[arg-type]
    played = asyncio.run(evaluator.play(greedy=False))["sampled"]
    in_full = asyncio.run(evaluator.play(greedy=True))
    return {
        "advantages": credit.total.tolist(),
        "credit": metrics_of_credit,
        "lessons": join_lessons(trajectories, all_rows),
        "states": starts.record(),
        "trials": summarise_outcomes(collect_outcomes(played, TASKS, 2)),
        "panel": panel_metrics(
            {decoding: collect_outcomes(episodes, TASKS) for decoding, episodes in in_full.items()}
        ),
    }


async def votes(hosts: Hosts) -> list[str]:
    """What a host is told that is cancelled while it waits for the other's vote, and when the other
    stops.
    """
    last = jax.process_index() == 1
    told = []
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None
    for stops in (False, True, True):
        if not last:
            loop.call_later(0.2, task.cancel)
        try:
            if last and stops:
                await asyncio.sleep(0.5)
                told.append((await hosts.stop(Stop(143, "stopped"))).text)
            else:
                await hosts.share(asyncio.sleep(0.5 if last else 0))
            await asyncio.sleep(0)
            told.append("continues")
        except asyncio.CancelledError:
            told.append("cancelled")
        except HostsStopped as stopped:
            told.append(str(stopped))
            await asyncio.sleep(0)
    return told


async def ahead(hosts: Hosts) -> list[Any]:
    """What the first host is told whose next rollout runs when the second stops, and whether the
    rollout is ended.
    """
    if jax.process_index() == 1:
        return [(await hosts.stop(Stop(143, "stopped"))).text]
    rollout = asyncio.ensure_future(asyncio.sleep(8, []))
    config = SimpleNamespace(train=SimpleNamespace(inflight=False))
    trainer = SimpleNamespace(
        config=config, hosts=hosts, learn=lambda _: {}, pending=None, done=0, rollouts=[rollout]
    )
    with pytest.raises(HostsStopped) as stopped:
        await Trainer.update(trainer, [])  # type: ignore[arg-type]
    return [str(stopped.value), rollout.cancelled()]


async def unanswered(hosts: Hosts) -> list[str]:
    """What the first host is told that stops, gets no answer, and then fails."""
    if jax.process_index() == 1:
        return []
    run.host_votes.STOP_LIMIT_S = 0.2
    told = [(await hosts.stop(Stop(1, reason))).text for reason in ("stopped", "failed then")]
    atexit.unregister(run.host_votes.leave_run)
    return told


def refused() -> str:
    """What a host is told of a model that is too large, where the second host has 2 GiB and the
    first one 4.
    """
    pages = {"SC_PHYS_PAGES": 2 - jax.process_index(), "SC_PAGE_SIZE": 2**31}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "sysconf", pages.get)
        with pytest.raises(InputError) as error:
            check_memory(resolve(default_config()), PUBLISHED["7b"], devices=2, hosts=2)
    return str(error.value)


async def stops() -> dict[str, list]:
    hosts = open_hosts()
    return {
        "votes": await votes(hosts),
        "ahead": await ahead(hosts),
        "unanswered": await unanswered(hosts),
    }


if __name__ == "__main__":
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        f"127.0.0.1:{sys.argv[2]}", 2, int(sys.argv[1]), initialization_timeout=200
    )
    ours = found((range(2), range(2, 5))[jax.process_index()])
    print(json.dumps(ours | {"refused": refused()} | asyncio.run(stops())))
