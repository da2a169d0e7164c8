"""Speed of the games: steps of random play, and tasks begun, in CPU time of one core.

python benchmarks/games.py

"worker" adds the work of a worker process for a step: it checks the result and encodes it.
"""

import argparse
import random
import time

from gigpo_jax.env_bridge.base import TextEnv
from gigpo_jax.env_bridge.boundary import validate_result
from gigpo_jax.env_bridge.processes.answers import pack_answer
from gigpo_jax.envs import registry
from gigpo_jax.envs.games import GameEnv

GAMES = ("sokoban", "ezpoints", "points24", "blackjack", "numberline")


def measure_steps(env: GameEnv, steps: int, *, worker: bool) -> float:
    """Steps a second: random admissible actions, over 64 tasks that were begun once before."""
    rng = random.Random(0)
    tasks = env.tasks("train")[:64]
    step_count = 0
    seconds = 0.0
    for task in tasks:
        env.reset(task)
    while step_count < steps:
        for task in tasks:
            observation = env.reset(task)
            done = False
            while not done:
                action = rng.choice(observation.admissible or ("",))
                start = time.process_time()
                result = env.step(action)
                if worker:
                    pack_answer(0, "ok", validate_result(result))
                seconds += time.process_time() - start
                observation = result.observation
                done = result.done
                step_count += 1
    return step_count / seconds


def measure_tasks(env: TextEnv, count: int) -> float:
    """Tasks a second that were not begun before."""
    tasks = env.tasks("train")[-count:]
    start = time.process_time()
    for task in tasks:
        env.reset(task)
    return len(tasks) / (time.process_time() - start)


def main() -> None:
    """Prints a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=3000, help="steps of each measurement")
    steps = parser.parse_args().steps
    print(
        "| steps a second | text | text, worker | picture | picture, worker | new tasks a second |"
    )
    print("|---|---|---|---|---|---|")
    for name in GAMES:
        cells = []
        for observation in ("text", "picture"):
            env = registry.make(name, observation=observation)
            assert isinstance(env, GameEnv)
            cells += [measure_steps(env, steps, worker=worker) for worker in (False, True)]
        cells.append(measure_tasks(registry.make(name, observation="text"), min(steps, 500)))
        print(f"| {name} | " + " | ".join(f"{cell:,.0f}" for cell in cells) + " |")


if __name__ == "__main__":
    main()
