"""What advantages cost: GiGPO's jitted and in plain Python, and time and memory of every algorithm
against GRPO.

    python benchmarks/advantages.py [--repeats 31]

Writes benchmarks/results/advantages.json. The first batch is an iteration of 16 tasks x 32 episodes
x 50 steps, for the jitted GiGPO against dicts and loops in Python, same numbers, same run; rows
come in the order of a rollout, "shuffled" is the same batch in random order. The catalogue runs on
16 and on 160 tasks x 8 episodes x 30 steps, every algorithm once a round. Ratios of time are of the
fastest calls, because other work on the machine only adds. Memory is the peak of the compiled
program's temporary buffers. Scores, tags and values that an algorithm needs are given, not
computed. States recur as they do early in training.
"""

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import jax
import numpy as np

from gigpo_jax.rl.advantages import gigpo_advantages
from gigpo_jax.rl.algorithms import ALGORITHMS, BASE, PRESETS, make_advantages
from gigpo_jax.rl.gigpo import gigpo
from gigpo_jax.rl.types import StepColumns, collect_columns

RESPONSE = 512  # tokens, the longest
COLUMNS = ("reward", "penalty", "trajectory", "step", "group", "anchor", "mask")
GOAL_MS = 10.0
Columns = dict[str, np.ndarray]


def make_batch(seed: int, groups: int, members: int, steps: int) -> Columns:
    """groups x members x steps rows in rollout order; half the episodes win."""
    rng = np.random.default_rng(seed)
    rows = groups * members * steps
    trajectory, step = (x.astype(np.int32) for x in np.divmod(np.arange(rows), steps))
    group = (trajectory // members).astype(np.int32)
    states = rng.integers(0, 2**32, size=(400, 2), dtype=np.uint32)
    # Few states at first, more later: group sizes from loners to a hundred.
    anchor = states[(rng.integers(0, 8 + 6 * step) + 7 * step) % len(states)]
    won = rng.random(groups * members) < 0.5
    return {
        "reward": (10.0 * (won[trajectory] & (step == steps - 1))).astype(np.float32),
        "penalty": (0.1 * (rng.random(rows) < 0.1)).astype(np.float32),
        "trajectory": trajectory,
        "step": step,
        "group": group,
        "anchor": anchor,
        "mask": np.ones(rows, bool),
    }


def with_optional(batch: Columns, seed: int) -> StepColumns:
    """The batch with every optional column: 50 actions, the other columns random."""
    rng = np.random.default_rng(seed)
    rows = len(batch["mask"])
    last = np.append(batch["trajectory"][1:] != batch["trajectory"][:-1], True)
    tokens = rng.integers(1, RESPONSE + 1, rows, dtype=np.int32)
    token_value = rng.random((rows, RESPONSE), np.float32) * (np.arange(RESPONSE) < tokens[:, None])
    numbers = {
        name: rng.random(rows, np.float32)
        for name in (
            "entropy",
            "logprob",
            "value",
            "step_reward",
            "answer_logprob",
            "hindsight_logprob",
            "task_deviation",
            "implicit_reward",
        )
    }
    plan_start = (batch["step"] == 0) | (rng.random(rows) < 0.2)
    return collect_columns(
        **batch,
        **numbers,
        action=rng.integers(0, 2**32, size=(50, 2), dtype=np.uint32)[rng.integers(0, 50, rows)],
        next_anchor=np.where(last[:, None], 0, np.roll(batch["anchor"], -1, 0)).astype(np.uint32),
        past=batch["anchor"],
        won=batch["reward"] > 0,
        truncated=last & (batch["reward"] == 0),
        forked=np.zeros(rows, bool),
        summary=np.zeros(rows, bool),
        strategy=batch["trajectory"] // 2,
        tag=rng.integers(0, 5, rows, dtype=np.int32),
        executable=rng.random(rows) < 0.9,
        task_type=np.stack([batch["group"] % 6] * 2, 1).astype(np.uint32),
        belief=batch["anchor"],
        belief_grade=rng.random((rows, 4), np.float32),
        tokens=tokens,
        token_value=token_value,
        plan_value=rng.random((rows, 3), np.float32),
        plan_start=plan_start,
        plan_changed=~plan_start & (rng.random(rows) < 0.1),
        token_part=np.where(
            np.arange(RESPONSE) < tokens[:, None], rng.integers(0, 3, (rows, RESPONSE)), -1
        ).astype(np.int32),
    )


def catalogue(
    columns: StepColumns, repeats: int, only: Collection[str]
) -> dict[str, dict[str, float]]:
    """Time and temporary memory of each algorithm whose advantages differ from GRPO's, wrappers
    also over GiGPO; of those in `only` and of GRPO, if there are any.
    """
    names = [
        name
        for name, a in ALGORITHMS.items()
        if name == "grpo"
        or ((name == "gigpo" or a.advantages != gigpo) and name in (only or [name]))
    ]
    chosen: dict[str, tuple[str, dict[str, Any]]] = {name: (name, {}) for name in names}
    chosen |= {
        f"{name} over gigpo": (name, {BASE: "gigpo"})
        for name in names
        if BASE in ALGORITHMS[name].settings
    }
    how: dict[str, Any] = {"gamma": 0.95, "step_weight": 1.0, "normalize": "mean_std"}
    columns = jax.device_put(columns)
    programs: dict[str, Any] = {
        label: jax.jit(make_advantages(name, "verl_agent", **how, **base)).lower(columns).compile()
        for label, (name, base) in chosen.items()
    }
    times: dict[str, list[float]] = {label: [] for label in programs}
    for _ in range(repeats + 1):  # the first round warms up
        for label, program in programs.items():
            begin = time.perf_counter()
            jax.block_until_ready(program(columns))
            times[label].append(1e3 * (time.perf_counter() - begin))
    least = {label: min(of[1:]) for label, of in times.items()}
    memory = {
        label: program.memory_analysis().temp_size_in_bytes for label, program in programs.items()
    }
    return {
        label: {
            "median_ms": round(statistics.median(times[label][1:]), 3),
            "min_ms": round(least[label], 3),
            "time_ratio": round(least[label] / least["grpo"], 2),
            "temporary_bytes": memory[label],
            "memory_ratio": round(memory[label] / memory["grpo"], 2),
        }
        for label in programs
    }


def plain_python(
    batch: Columns, *, gamma: float, step_weight: float, eps: float = 1e-6
) -> np.ndarray:
    """The "verl_agent" preset with mean_std in float64, one pass a formula; [N] total
    advantages.
    """
    reward = batch["reward"].tolist()
    penalty = batch["penalty"].tolist()
    group = batch["group"].tolist()
    episodes: dict[tuple[int, int], list[int]] = {}
    for n, key in enumerate(zip(group, batch["trajectory"].tolist())):
        episodes.setdefault(key, []).append(n)
    score = [0.0] * len(reward)
    returns = [0.0] * len(reward)
    step = batch["step"].tolist()
    for rows in episodes.values():
        rows.sort(key=step.__getitem__)
        total = sum(reward[n] for n in rows)
        running = 0.0
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
            mean = statistics.fmean(compared)
            deviation = statistics.stdev(compared)
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


def measure_catalogue(repeats: int, only: list[str]) -> dict[int, Any]:
    """Measures all algorithms at two sizes; prints a table each. Results by number of steps."""
    costs = {}
    for tasks in (16, 160):
        columns = with_optional(make_batch(0, tasks, 8, 30), 1)
        size = len(columns.mask)
        costs[size] = catalogue(columns, repeats, only)
        print(f"\n{size} steps{'':15}{'min ms':>12}{'to grpo':>10}{'MB':>10}{'to grpo':>10}")
        for name, row in costs[size].items():
            megabytes = row["temporary_bytes"] / 1e6
            print(
                f"{name:28}{row['min_ms']:8.2f}{row['time_ratio']:10.2f}{megabytes:10.2f}{row['memory_ratio']:10.2f}"
            )
    return costs


def main() -> None:
    """Runs the comparison, prints a table and writes the JSON file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=31)
    parser.add_argument("--only", nargs="*", default=[], help="algorithms of the catalogue")
    parser.add_argument(
        "--output", type=Path, default=Path(__file__).parent / "results" / "advantages.json"
    )
    args = parser.parse_args()
    batch = make_batch(0, 16, 32, 50)
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
        results[name] = {
            "median_ms": round(statistics.median(times), 3),
            "min_ms": round(min(times), 3),
        }
    print(
        f"{rows} steps, {jax.default_backend()}, {os.cpu_count()} cores; largest difference {difference:.1e}"
    )
    print(f"{'':24}{'median ms':>12}{'min ms':>12}")
    for name, row in results.items():
        print(f"{name:24}{row['median_ms']:12.2f}{row['min_ms']:12.2f}")
    costs = measure_catalogue(args.repeats, args.only)
    record = {
        "steps": rows,
        "goal_ms": GOAL_MS,
        "largest_difference": difference,
        "results": results,
        "catalogue": costs,
        "machine": {
            "backend": jax.default_backend(),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
        },
        "jax": jax.__version__,
    }
    args.output.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
