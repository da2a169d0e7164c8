"""Error and time of the values of states at 25,600 rows, against a linear solve in float64.

    python -m benchmarks.state_values [--seeds 8] [--repeats 7]

Writes benchmarks/results/state_values.json. The episodes are lazy random walks on a ring of states.
A walk that reaches state 0 wins 10; the others end at the limit of steps. The cases differ in the
expected number of steps to the end, which makes the fixed point hard to find with gamma 1. In the
last case every step costs 0.1, and walks begin at random states.

An error is the worst value's of a batch, as a share of the largest absolute reward or value.
A time is a call's with arrays on the device. Every batch has the fastest and the median of its
calls, because other work on the machine only adds; the table has the medians over the batches.
"""

import argparse
import json
import os
import platform
import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from gigpo_jax.rl.graph import state_values

ROWS = 25_600
GAMMAS = (0.95, 0.99, 1.0)
GOAL_MS = 20.0
GOAL_ERROR = 1e-5
Columns = dict[str, np.ndarray]


@dataclass(frozen=True)
class Case:
    """Walks of one kind.

    Attributes:
      groups: Number of task groups.
      members: Number of walks in a group.
      limit: Largest number of steps of a walk.
      states: Number of states on the ring.
      penalty: Penalty of a step.
    """

    groups: int
    members: int
    limit: int
    states: int
    penalty: float = 0.0


CASES = {
    "50 steps": Case(groups=16, members=32, limit=50, states=20),
    "200 steps": Case(groups=16, members=8, limit=200, states=40),
    "800 steps": Case(groups=4, members=8, limit=800, states=60),
    "3200 steps": Case(groups=2, members=4, limit=3200, states=100),
    "800 steps, penalties": Case(groups=4, members=8, limit=800, states=60, penalty=0.1),
}


def make_walks(case: Case, seed: int) -> Columns:
    """Walks in rollout order, padded to ROWS."""
    rng = np.random.default_rng(seed)
    walks = case.groups * case.members
    if case.penalty:
        place = rng.integers(1, case.states, walks)
    else:
        place = np.full(walks, case.states // 2)
    moves = rng.integers(-1, 2, (walks, case.limit))
    places = place[:, None] + np.cumsum(moves, axis=1)
    # A walk has not gone round before it reaches state 0.
    is_home = places % case.states == 0
    lengths = np.where(is_home.any(1), is_home.argmax(1) + 1, case.limit)
    step = np.concatenate([np.arange(length) for length in lengths])
    trajectory = np.repeat(np.arange(walks), lengths)
    padding = ROWS - len(step)
    reward = 10.0 * is_home[trajectory, step]
    before = np.concatenate([place[:, None], places[:, :-1]], axis=1)
    anchor = before[trajectory, step] % case.states
    columns = {
        "reward": reward.astype(np.float32),
        "penalty": np.full(len(step), case.penalty, np.float32),
        "trajectory": trajectory.astype(np.int32),
        "step": step.astype(np.int32),
        "group": (trajectory // case.members).astype(np.int32),
        "anchor": np.stack([anchor, anchor], axis=1).astype(np.uint32),
        "mask": np.ones(len(step), bool),
    }
    return {
        name: np.pad(column, [(0, padding)] + [(0, 0)] * (column.ndim - 1))
        for name, column in columns.items()
    }


def solve_exactly(columns: Columns, gamma: float) -> np.ndarray:
    """Values by a dense linear solve for all states, [N] f64, 0 where masked."""
    # The package computes with the f32 number.
    gamma = float(np.float32(gamma))
    mask = columns["mask"]
    keys = np.stack([columns["group"], columns["anchor"][:, 0]], axis=1)[mask]
    states, node = np.unique(keys, axis=0, return_inverse=True)
    node = node.reshape(-1)
    visits = np.bincount(node)
    reward = columns["reward"].astype(float) - columns["penalty"].astype(float)
    mean_reward = np.bincount(node, reward[mask]) / visits
    trajectory = columns["trajectory"][mask]
    is_followed = trajectory[1:] == trajectory[:-1]
    source = node[:-1][is_followed]
    target = node[1:][is_followed]
    matrix = np.eye(len(states))
    np.add.at(matrix, (source, target), -gamma / visits[source])
    values = np.zeros(len(mask))
    values[mask] = np.linalg.solve(matrix, mean_reward)[node]
    return values


def measure_batch(case: Case, seed: int, gamma: float, repeats: int) -> dict[str, float]:
    """Relative error, times in milliseconds and number of rows of one batch."""
    columns = make_walks(case, seed)
    exact = solve_exactly(columns, gamma)
    on_device = jax.device_put(columns)
    values = np.asarray(state_values(**on_device, gamma=gamma), np.float64)
    largest = max(np.abs(columns["reward"] - columns["penalty"]).max(), np.abs(exact).max())
    # Nobody may have won: all values are then 0.
    scale = largest or 1.0
    error = float(np.abs(values - exact).max() / scale)
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        jax.block_until_ready(state_values(**on_device, gamma=gamma))
        times.append(1e3 * (time.perf_counter() - begin))
    return {
        "error": error,
        "fastest_ms": min(times),
        "median_ms": statistics.median(times),
        "rows": int(columns["mask"].sum()),
    }


def measure_case(case: Case, gamma: float, seeds: int, repeats: int) -> dict[str, Any]:
    """Errors and times over seeds."""
    batches = [measure_batch(case, seed, gamma, repeats) for seed in range(seeds)]
    medians = {name: statistics.median(batch[name] for batch in batches) for name in batches[0]}
    return {
        "gamma": gamma,
        "unmasked_rows": round(medians["rows"]),
        "largest_error": float(f"{max(batch['error'] for batch in batches):.1e}"),
        "median_error": float(f"{medians['error']:.1e}"),
        "fastest_ms": round(medians["fastest_ms"], 1),
        "median_ms": round(medians["median_ms"], 1),
        "slowest_batch_ms": round(max(batch["fastest_ms"] for batch in batches), 1),
    }


def main() -> None:
    """Measures all cases, prints a table and writes the JSON file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument(
        "--output", type=Path, default=Path(__file__).parent / "results" / "state_values.json"
    )
    arguments = parser.parse_args()
    results = {}
    for name, case in CASES.items():
        rows = [measure_case(case, g, arguments.seeds, arguments.repeats) for g in GAMMAS]
        results[name] = {"case": asdict(case), "grades": rows}
        for row in rows:
            print(
                f"{name:24}gamma {row['gamma']:<6}error {row['largest_error']:.1e}"
                f"   fastest {row['fastest_ms']:5.1f} ms   median {row['median_ms']:5.1f} ms",
                flush=True,
            )
    record = {
        "rows": ROWS,
        "seeds": arguments.seeds,
        "repeats": arguments.repeats,
        "goal_ms": GOAL_MS,
        "goal_error": GOAL_ERROR,
        "results": results,
        "machine": {
            "backend": jax.default_backend(),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
        },
        "jax": jax.__version__,
    }
    arguments.output.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
