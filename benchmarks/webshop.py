"""WebShop: start, steps, searches, memory and preparation, against the figures of the original.

    python benchmarks/webshop.py [--sizes 1000 10000 30000 100000] [--steps 20000] [--folder DIR]
    [--out FILE]

Generates a catalogue of each size (kept in --folder if named), prepares it in a process of its own,
and plays in two fresh worker processes at a time, so that memory which they share is seen as
shared. Times are CPU times, so that other programs on the machine do not count; wall times of the
start stand beside them. Memory of its own: private pages of /proc/self/smaps_rollup. Prints a table
in Markdown, and what 1.18 million products will take by a straight line through the sizes of 10,000
products and more; writes all numbers as JSON.
"""

import argparse
import json
import multiprocessing
import os
import platform
import random
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

RESULT = Path(__file__).parent / "results" / "webshop.json"
FULL = 1_180_000  # products of the genuine catalogue
LIMIT_S = 3600.0
# figures of the original, 200-400 products
ORIGINAL = {"steps_per_s": 61, "step_ms": 13.0, "start_s": 4.0, "own_mb": 340}
GOALS = {  # products -> limit of each figure
    1000: {"steps_per_s": 8000, "start_s": 0.5, "own_mb": 45},
    100000: {"start_s": 1.0, "search_worst_ms": 10, "own_mb": 60, "prepare_s": 300},
}


def measure_private_mb() -> float:
    """Memory that only this process uses, MB."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024


def play_episodes(folder: str, steps: int, seed: int, answers: Any) -> None:
    """A worker: starts, plays random episodes, then makes new searches."""
    wall_start = time.perf_counter()
    cpu_start = time.process_time()
    from gigpo_jax.envs.webshop.env import SEARCH, make

    env = make(folder)
    tasks = env.tasks("train")
    observation = env.reset(tasks[0])
    start = {
        "start_s": time.perf_counter() - wall_start,
        "start_cpu_s": time.process_time() - cpu_start,
        "start_mb": measure_private_mb(),
    }
    rng = random.Random(seed)
    count = 0
    began = time.process_time()
    while count < steps:
        observation = env.reset(tasks[rng.randrange(len(tasks))])
        done = False
        while not done:
            action = rng.choice(observation.admissible or ("",))
            if action == SEARCH:
                action = f"search[{observation.task.split(', and price')[0]}]"
            result = env.step(action)
            observation = result.observation
            done = result.done
            count += 1
    rate = count / (time.process_time() - began)
    catalogue = env.catalogue
    searches = []
    for _ in range(200):
        goal = catalogue.goal(rng.randrange(catalogue.goal_count))
        text = f"{goal.instruction} {rng.randrange(10**6)}"
        began = time.process_time()
        catalogue.search(text.lower().split(" "))
        searches.append(1000 * (time.process_time() - began))
    answers.put(
        {
            **start,
            "steps_per_s": rate,
            "step_ms": 1000 / rate,
            "search_ms": statistics.median(searches),
            "search_worst_ms": max(searches),
            "own_mb": measure_private_mb(),
        }
    )


def prepare_catalogue(folder: str, products: int, answers: Any) -> None:
    """Generates (unless it is there) and prepares a catalogue."""
    from gigpo_jax.envs.webshop.catalogue import prepare
    from gigpo_jax.envs.webshop.catalogue.sources import find_sources
    from gigpo_jax.envs.webshop.data import generate

    figures: dict[str, float] = {}
    path = Path(folder)
    if not list(path.glob("items_shuffle*.json")):
        began = time.process_time()
        generate.write_catalogue(path, products=products)
        figures["generate_s"] = time.process_time() - began
    began = time.process_time()
    prepare.ensure_prepared(find_sources(path), path / "prepared", rebuild=True)
    figures["prepare_s"] = time.process_time() - began
    figures["prepare_peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    figures["prepared_mb"] = (
        sum(file.stat().st_size for file in (path / "prepared").iterdir()) / 2**20
    )
    answers.put(figures)


def run_in_processes(function: Any, calls: list[tuple[Any, ...]]) -> list[dict[str, float]]:
    """Runs calls at the same time, each in a fresh process; their answers."""
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    workers = [
        context.Process(target=function, args=(*call, answers), daemon=True) for call in calls
    ]
    for worker in workers:
        worker.start()
    results = [answers.get(timeout=LIMIT_S) for _ in workers]
    for worker in workers:
        worker.join(timeout=60)
    return results


def measure_size(folder: Path, products: int, steps: int) -> dict[str, float]:
    """All figures of one size; of two workers the worse one."""
    result: dict[str, float] = {"products": products}
    result.update(run_in_processes(prepare_catalogue, [(str(folder), products)])[0])
    first, second = run_in_processes(play_episodes, [(str(folder), steps, seed) for seed in (0, 1)])
    for key in first:
        worse = min if key == "steps_per_s" else max
        result[key] = worse(first[key], second[key])
    return result


def extrapolate(results: list[dict[str, float]], key: str) -> float:
    """The value at the full catalogue by least squares through the larger sizes."""
    import numpy as np  # here, because a worker's start is measured with all that it imports

    large = [result for result in results if result["products"] >= 10_000]
    products = [result["products"] for result in large]
    values = [result[key] for result in large]
    slope, offset = np.polyfit(products, values, 1)
    return float(slope * FULL + offset)


def write_table(results: list[dict[str, float]], full: dict[str, float]) -> str:
    """The figures in Markdown."""
    rows = [
        ("prepare, CPU s", "prepare_s", ".1f"),
        ("prepare, peak MB", "prepare_peak_mb", ",.0f"),
        ("prepared files, MB", "prepared_mb", ",.1f"),
        ("start of a worker, wall s", "start_s", ".2f"),
        ("start of a worker, CPU s", "start_cpu_s", ".2f"),
        ("steps a CPU second", "steps_per_s", ",.0f"),
        ("a new search, median ms", "search_ms", ".2f"),
        ("a new search, worst of 200, ms", "search_worst_ms", ".2f"),
        ("memory of its own, MB", "own_mb", ".1f"),
    ]
    sizes = [f"{int(result['products']):,} products" for result in results]
    original = {"start_s": "3 to 5", "steps_per_s": "61", "own_mb": "340"}
    lines = [
        f"| | original (200-400) | {' | '.join(sizes)} | {FULL:,} (line) |",
        "|---|" + "---|" * (len(sizes) + 2),
    ]
    for name, key, number_format in rows:
        cells = [original.get(key, "")]
        cells += [format(result[key], number_format) for result in results]
        cells.append(format(full[key], number_format) if key in full else "")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def list_missed_goals(results: list[dict[str, float]]) -> list[str]:
    """The goals that were not reached."""
    missed_goals = []
    for result in results:
        products = int(result["products"])
        for key, goal in GOALS.get(products, {}).items():
            value = result[key]
            is_missed = value < goal if key == "steps_per_s" else value > goal
            if is_missed:
                missed_goals.append(
                    f"{products:,} products: {key} is {value:.2f}, the goal is {goal}"
                )
    return missed_goals


def main() -> int:
    """Measures; returns the exit status: 1 if a goal was missed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[1000, 10_000, 30_000, 100_000])
    parser.add_argument("--steps", type=int, default=20_000, help="steps each worker plays")
    parser.add_argument(
        "--folder", type=Path, help="where to keep the catalogues (a temporary folder)"
    )
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        base = options.folder or Path(temporary)
        results = []
        for products in options.sizes:
            results.append(measure_size(base / str(products), products, options.steps))
            print(json.dumps(results[-1]), file=sys.stderr)
    full: dict[str, float] = {}
    if sum(size >= 10_000 for size in options.sizes) >= 2:
        keys = ("prepare_s", "prepare_peak_mb", "prepared_mb", "start_cpu_s", "search_ms")
        full = {key: extrapolate(results, key) for key in keys}
    machine = {
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "machine": platform.machine(),
    }
    report = {
        "original": ORIGINAL,
        "results": results,
        "full_catalogue_by_line": full,
        "machine": machine,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(report, indent=2) + "\n")
    print(write_table(results, full))
    failures = list_missed_goals(results)
    print("\n".join(failures) or "all goals reached")
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
