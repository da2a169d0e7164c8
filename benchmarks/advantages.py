"""GiGPO advantages of 25,600 steps: the jitted function against dicts and loops in Python, same numbers, same run.

    python benchmarks/advantages.py [--repeats 31]

Writes benchmarks/results/advantages.json. The batch is an iteration of 16 tasks x 32 episodes x 50 steps; states recur
as they do early in training. Rows come in the order of a rollout; "shuffled" is the same batch in random order.
"""

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np

from gigpo_jax.rl.advantages import gigpo_advantages
from gigpo_jax.rl.algorithms import PRESETS

GROUPS, MEMBERS, STEPS = 16, 32, 50
COLUMNS = ("reward", "penalty", "trajectory", "step", "group", "anchor", "mask")
GOAL_MS = 10.0
Columns = dict[str, np.ndarray]


def make_batch(seed: int) -> Columns:
    """16 x 32 x 50 step rows in rollout order; half the episodes win."""
    rng = np.random.default_rng(seed)
    rows = GROUPS * MEMBERS * STEPS
    trajectory, step = (x.astype(np.int32) for x in np.divmod(np.arange(rows), STEPS))
    group = (trajectory // MEMBERS).astype(np.int32)
    states = rng.integers(0, 2**32, size=(400, 2), dtype=np.uint32)
    # Few states at first, more later: group sizes from loners to a hundred.
    anchor = states[(rng.integers(0, 8 + 6 * step) + 7 * step) % len(states)]
    won = rng.random(GROUPS * MEMBERS) < 0.5
    return {
        "reward": (10.0 * (won[trajectory] & (step == STEPS - 1))).astype(np.float32),
        "penalty": (0.1 * (rng.random(rows) < 0.1)).astype(np.float32),
        "trajectory": trajectory,
        "step": step,
        "group": group,
        "anchor": anchor,
        "mask": np.ones(rows, bool),
    }


def plain_python(batch: Columns, *, gamma: float, step_weight: float, eps: float = 1e-6) -> np.ndarray:
    """The "verl_agent" preset with mean_std in float64, one pass a formula; [N] total advantages."""
    reward, penalty = batch["reward"].tolist(), batch["penalty"].tolist()
    group = batch["group"].tolist()
    episodes: dict[tuple[int, int], list[int]] = {}
    for n, key in enumerate(zip(group, batch["trajectory"].tolist())):
        episodes.setdefault(key, []).append(n)
    score, returns = [0.0] * len(reward), [0.0] * len(reward)
    step = batch["step"].tolist()
    for rows in episodes.values():
        rows.sort(key=step.__getitem__)
        total, running = sum(reward[n] for n in rows), 0.0
        for n in reversed(rows):
            running = reward[n] + gamma * running
            returns[n], score[n] = running - penalty[n], total - penalty[n]
    tasks: dict[int, list[int]] = {}
    states: dict[tuple[int, int, int], list[int]] = {}
    for n, (task, anchor) in enumerate(zip(group, batch["anchor"].tolist())):
        tasks.setdefault(task, []).append(n)
        states.setdefault((task, *anchor), []).append(n)
    out = np.zeros(len(reward))
    for sets, values, weight in ((tasks, score, 1.0), (states, returns, step_weight)):
        for rows in sets.values():
            if len(rows) < 2:
                continue
            compared = [values[n] for n in rows]
            mean, deviation = statistics.fmean(compared), statistics.stdev(compared)
            for n in rows:
                out[n] += weight * (values[n] - mean) / (deviation + eps)
    return out


def milliseconds(call: Callable[[], object], repeats: int) -> list[float]:
    """Times `repeats` calls after one that warms up."""
    call()
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        call()
        times.append(1e3 * (time.perf_counter() - begin))
    return times


def main() -> None:
    """Runs the comparison, prints a table and writes the JSON file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=31)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "advantages.json")
    args = parser.parse_args()
    batch = make_batch(0)
    rows = len(batch["mask"])
    order = np.random.default_rng(1).permutation(rows)
    shuffled = {name: x[order] for name, x in batch.items()}
    how = {"gamma": 0.95, "step_weight": 1.0}
    full = {**how, **PRESETS["verl_agent"], "normalize": "mean_std"}

    def jitted(columns: Columns) -> Callable[[], np.ndarray]:
        # From host arrays to host arrays, as the training loop calls it.
        return lambda: np.asarray(jax.block_until_ready(gigpo_advantages(**columns, **full)).total)

    difference = max(
        float(np.abs(jitted(batch)() - plain_python(batch, **how)).max()),
        float(np.abs(jitted(shuffled)() - plain_python(batch, **how)[order]).max()),
    )
    results = {}
    for name, call, repeats in (
        ("jitted, rollout order", jitted(batch), args.repeats),
        ("jitted, shuffled", jitted(shuffled), args.repeats),
        ("plain Python", lambda: plain_python(batch, **how), max(args.repeats // 6, 3)),
    ):
        times = milliseconds(call, repeats)
        results[name] = {"median_ms": round(statistics.median(times), 3), "min_ms": round(min(times), 3)}
    print(f"{rows} steps, {jax.default_backend()}, {os.cpu_count()} cores; largest difference {difference:.1e}")
    print(f"{'':24}{'median ms':>12}{'min ms':>12}")
    for name, row in results.items():
        print(f"{name:24}{row['median_ms']:12.2f}{row['min_ms']:12.2f}")
    record = {
        "steps": rows,
        "goal_ms": GOAL_MS,
        "largest_difference": difference,
        "results": results,
        "machine": {"backend": jax.default_backend(), "cores": os.cpu_count(), "python": platform.python_version()},
        "jax": jax.__version__,
    }
    args.output.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
