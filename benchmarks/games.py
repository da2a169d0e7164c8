"""Speed of the games: steps of random play, with text and with pictures, and tasks begun. CPU time of one core.

python benchmarks/games.py

"worker" adds what a worker process does with a step: it checks the result and pickles it for the learner.
"""

import argparse
import random
import time

from gigpo_jax.env_bridge.base import TextEnv
from gigpo_jax.env_bridge.boundary import checked_result
from gigpo_jax.env_bridge.worker import pack
from gigpo_jax.envs import registry
from gigpo_jax.envs.games import GameEnv

GAMES = ("sokoban", "ezpoints", "points24", "blackjack", "numberline")


def steps_a_second(env: GameEnv, steps: int, *, worker: bool) -> float:
    """Plays admissible actions at random, over 64 tasks that were begun once before."""
    rng, tasks, taken, spent = random.Random(0), env.tasks("train")[:64], 0, 0.0
    for task in tasks:
        env.reset(task)
    while taken < steps:
        for task in tasks:
            observation, done = env.reset(task), False
            while not done:
                action = rng.choice(observation.admissible or ("",))
                started = time.process_time()
                result = env.step(action)
                if worker:
                    pack((0, "ok", checked_result(result)))
                spent += time.process_time() - started
                observation, done, taken = result.observation, result.done, taken + 1
    return taken / spent


def tasks_a_second(env: TextEnv, tasks: int) -> float:
    """Begins tasks that were not begun before."""
    fresh = env.tasks("train")[-tasks:]
    started = time.process_time()
    for task in fresh:
        env.reset(task)
    return len(fresh) / (time.process_time() - started)


def main() -> None:
    """Prints a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=3000, help="of each measurement")
    steps = parser.parse_args().steps
    print("| steps a second | text | text, worker | picture | picture, worker | new tasks a second |")
    print("|---|---|---|---|---|---|")
    for name in GAMES:
        cells = []
        for kind in ("text", "picture"):
            env = registry.make(name, observation=kind)
            assert isinstance(env, GameEnv)
            cells += [steps_a_second(env, steps, worker=worker) for worker in (False, True)]
        cells.append(tasks_a_second(registry.make(name, observation="text"), min(steps, 500)))
        print(f"| {name} | " + " | ".join(f"{cell:,.0f}" for cell in cells) + " |")


if __name__ == "__main__":
    main()
