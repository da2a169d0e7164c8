"""Program of tests/learner/test_staleness.py: stopped runs are equal to whole ones.

`ahead.py FOLDER` prints "equal".

The updates of the whole run wait until the next rollout has ended; new weights come while a later
one runs.
"""

import asyncio
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import jax

from gigpo_jax.config import resolve
from gigpo_jax.devices.mesh import make_mesh
from gigpo_jax.engines.jax.jax_engine import JaxEngine
from gigpo_jax.env_bridge.freeze import freeze_panel, write_panel
from gigpo_jax.envs import registry
from gigpo_jax.learner.learner import Learner
from gigpo_jax.main import main
from gigpo_jax.modes.model_folder import fresh_policy, save_policy
from gigpo_jax.rollout.read_record import read_rollouts
from gigpo_jax.rollout.rollout import RolloutJob
from gigpo_jax.rollout.worker import RolloutWorker
from tests.configs.example import get_config
from tests.metrics import records

ITERATIONS = 4
LIMIT_S = 200
FLAGS = [
    f"--config.train.iterations={ITERATIONS}",
    "--config.train.save_rollouts=1",
    "--config.engine.devices=1",
]
FLAGS += ["--config.eval.tasks=2", "--config.eval.every=2"]
FLAGS += ["--config.rl.entropy_coef=0.1"]  # random responses earn no rewards to learn from

engines: list[JaxEngine] = []
played: set[int] = set()
learn = Learner.learn
play = RolloutWorker.play
start = JaxEngine.__init__


def started(self: JaxEngine, *args: Any, **options: Any) -> None:
    start(self, *args, **options)
    engines.append(self)


async def recorded(self: RolloutWorker, job: RolloutJob, **options: Any) -> Any:
    while job.iteration == 2 and engines[-1]._newest.version == 0:
        await asyncio.sleep(0.01)
    trajectories = await play(self, job, **options)
    played.add(job.iteration)
    return trajectories


def devices(tree: Any) -> set[jax.Device]:
    return {device for leaf in jax.tree.leaves(tree) for device in leaf.sharding.device_set}


def check(folder: Path, staleness: int) -> None:
    """Runs whose engine has the second of two devices."""

    def held(self: Learner, steps: Any, iteration: int, *args: Any) -> Any:
        engine = engines[-1]
        deadline = time.monotonic() + LIMIT_S
        while not played >= set(range(min(iteration + 2, ITERATIONS))):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        if iteration + 1 < ITERATIONS:  # then the engine is needed no more
            assert devices((engine._newest.params, engine._programs.cache)) == {jax.devices()[1]}
            assert devices(self.state) == {jax.devices()[0]}
        return learn(self, steps, iteration, *args)

    def stopped(self: Learner, steps: Any, iteration: int, *args: Any) -> Any:
        if iteration == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return learn(self, steps, iteration, *args)

    def run(name: str, status: int = 0) -> None:
        flags = [
            f"--config.model.path={folder.parent / 'model'}",
            f"--config.eval.panel={folder.parent / 'panel.json'}",
        ]
        flags += [f"--config.train.max_staleness={staleness}", *FLAGS]
        assert (
            main(["--config=tests/configs/example.py", f"--workdir={folder / name}", *flags])
            == status
        )

    Learner.learn, RolloutWorker.play, JaxEngine.__init__ = held, recorded, started  # type: ignore[method-assign,assignment]
    played.clear()
    run("whole")
    RolloutWorker.play = play  # type: ignore[method-assign]
    Learner.learn = stopped  # type: ignore[method-assign,assignment]
    run("stopped", 143)
    Learner.learn = learn  # type: ignore[method-assign]
    run("stopped")
    steps = records(folder / "whole")[1:]
    assert [step["rollout/staleness"] for step in steps] == [
        min(i, staleness) for i in range(ITERATIONS)
    ]
    assert steps[0]["policy/behaviour_mismatch"] < 1e-4 < steps[-1]["policy/behaviour_mismatch"]
    assert records(folder / "stopped")[1:] == steps
    assert "val/sampled/success_rate" in steps[1]
    for number in range(ITERATIONS):
        whole, again = (
            folder / name / f"rollouts/iteration_{number + 1:06d}.host0.jsonl.gz"
            for name in ("whole", "stopped")
        )
        versions = {
            step.version for episode in read_rollouts(whole).episodes for step in episode.steps
        }
        assert versions == {max(0, number - staleness)}
        assert whole.read_bytes() == again.read_bytes()


if __name__ == "__main__":
    config = resolve(get_config())
    words = ["you look for a treasure in a row of drawers. open drawer 1 2"]
    policy = fresh_policy(config, make_mesh(data=2), words)
    env = registry.make("example", drawers=2, games=16)
    write_panel(Path(sys.argv[1]) / "panel.json", freeze_panel("drawers", "example", env, "test"))
    save_policy(Path(sys.argv[1]) / "model", config, policy, policy.params)
    for updates in (1, 2):
        check(Path(sys.argv[1]) / str(updates), updates)
    print("equal")
