"""Our ALFWorld engine and the official one: the same games and walks, in one run.

    python benchmarks/alfworld_engine.py [--games 12] [--steps 50] [--seed 0] [--size full]
        [--out FILE]

Each engine plays in a process of its own, one after the other. Times are CPU times, so that other
programs on the machine do not count. Prints a table in Markdown and writes the numbers, with a
description of the machine, as JSON. Needs the official engine: pip install alfworld==0.4.2.
"""

import argparse
import importlib.metadata
import json
import multiprocessing
import os
import platform
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from gigpo_jax.core.errors import InputError
from gigpo_jax.envs.alfworld.data.one_split import generate_games
from gigpo_jax.envs.alfworld.engine.game import Game

RESULT = Path(__file__).parent / "results" / "alfworld_engine.json"
LIMIT_S = 3600.0


def record_walk(path: Path, steps: int, rng: random.Random) -> list[str]:
    """Commands of a random walk: the verb is drawn first, one command in five is invalid."""
    game = Game(path)
    step = game.reset()
    commands = []
    for _ in range(steps):
        verb = rng.choice(sorted({command.split()[0] for command in step.admissible}))
        good = rng.choice([command for command in step.admissible if command.split()[0] == verb])
        commands.append(good if rng.random() < 0.8 else good.upper())
        step = game.step(commands[-1])
    return commands


def resident_bytes() -> int:
    """Memory of this process that lies in RAM, bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def measure(engine: str, games: list[tuple[str, list[str]]], answers: Any) -> None:
    """Plays all walks in one engine; puts times and memory into a queue."""
    if engine == "official":
        from gigpo_jax.envs.alfworld.engine.official import OfficialGame as Engine
    else:
        from gigpo_jax.envs.alfworld.engine.game import Game as Engine  # type: ignore[assignment]
    Engine(games[0][0]).reset()  # imports and caches
    loads = []
    resets = []
    steps = []
    feedbacks = []
    loaded_games = []
    initial_bytes = resident_bytes()
    for path, commands in games:
        start = time.process_time()
        game = Engine(path)
        loads.append(time.process_time() - start)
        start = time.process_time()
        feedbacks.append(game.reset().feedback)
        resets.append(time.process_time() - start)
        for command in commands:
            start = time.process_time()
            step = game.step(command)
            steps.append(time.process_time() - start)
            feedbacks.append(step.feedback)
        loaded_games.append(game)
    memory = (resident_bytes() - initial_bytes) / len(games)
    answers.put(
        {"load": loads, "reset": resets, "step": steps, "memory": memory, "said": feedbacks}
    )


def run(engine: str, games: list[tuple[str, list[str]]]) -> dict[str, Any]:
    """Measures one engine in a fresh process."""
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    process = context.Process(target=measure, args=(engine, games, answers))
    process.start()
    end = time.monotonic() + LIMIT_S
    while answers.empty():
        if not process.is_alive() and answers.empty():
            raise SystemExit(f"the {engine} engine's process ended with status {process.exitcode}")
        if time.monotonic() > end:
            process.terminate()
            raise SystemExit(
                f"the {engine} engine did not finish within {LIMIT_S:.0f} s; use fewer games"
            )
        time.sleep(0.05)
    answer = answers.get()
    process.join(10)
    return answer


def summary(answer: dict[str, Any]) -> dict[str, float]:
    """Medians and the like, in the units that the keys name."""
    step = statistics.median(answer["step"])
    return {
        "load_ms": round(statistics.median(answer["load"]) * 1e3, 3),
        "reset_ms": round(statistics.median(answer["reset"]) * 1e3, 4),
        "step_us": round(step * 1e6, 2),
        "step_us_p95": round(statistics.quantiles(answer["step"], n=20)[-1] * 1e6, 2),
        "steps_per_s": round(len(answer["step"]) / sum(answer["step"]), 1),
        "memory_mb": round(answer["memory"] / 2**20, 3),
    }


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    cpu = next(
        (line.split(":")[1].strip() for line in _cpuinfo() if line.startswith("model name")),
        platform.machine(),
    )
    versions = {name: importlib.metadata.version(name) for name in ("alfworld", "textworld")}
    return {"cpu": cpu, "cores": os.cpu_count(), "python": platform.python_version(), **versions}


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []


def table(ours: dict[str, float], official: dict[str, float]) -> str:
    """The two summaries as a Markdown table."""
    rows = [
        ("step, median", "step_us", "{:,.1f} us"),
        ("steps a second, one core", "steps_per_s", "{:,.0f}"),
        ("load a game, median", "load_ms", "{:,.2f} ms"),
        ("reset, median", "reset_ms", "{:,.3f} ms"),
        ("memory a game", "memory_mb", "{:,.2f} MB"),
    ]
    lines = ["| ALFWorld engine | official | ours | ratio |", "|---|---|---|---|"]
    for label, key, form in rows:
        big, small = sorted((official[key], ours[key]), reverse=True)
        ratio = f"{big / small:,.0f}x" if small > 0 else ""
        lines.append(
            f"| {label} | {form.format(official[key])} | {form.format(ours[key])} | {ratio} |"
        )
    return "\n".join(lines)


def main() -> int:
    """Runs the comparison; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--games", type=int, default=12)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--size", default="full", choices=("small", "full"))
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        try:
            split_folder = generate_games(
                folder, "train", options.games, seed=options.seed, size=options.size
            )
        except InputError as error:
            print(error, file=sys.stderr)
            return 2
        paths = sorted(split_folder.rglob("game.tw-pddl"))
        games = [(str(path), record_walk(path, options.steps, rng)) for path in paths]
        official = run("official", games)
        ours = run("native", games)
    is_equal = official["said"] == ours["said"]
    result = {
        "games": len(games),
        "steps": len(ours["step"]),
        "size": options.size,
        "seed": options.seed,
        "same_feedback": is_equal,
        "machine": machine(),
        "official": summary(official),
        "ours": summary(ours),
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=2) + "\n")
    print(table(result["ours"], result["official"]))
    print(
        f"\n{len(games)} {options.size} games, {len(ours['step'])} steps each engine; "
        f"same texts: {is_equal}"
    )
    return 0 if is_equal else 1


if __name__ == "__main__":
    raise SystemExit(main())
