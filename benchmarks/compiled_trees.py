"""Updates and scores of the published ALFWorld config, with shared prefixes as trees and without,
compiled for devices that are not here.

    python -m benchmarks.compiled_trees --targets v5e-8 h100x1 [--programs update score]

It needs the extras preflight-tpu and preflight-gpu. Adds to benchmarks/results/compiled_trees.json
what a device does for one minibatch, counted as by `gigpo preflight`. How many rows trees save, and
how many responses a row then has, is taken from benchmarks/results/shared_prefixes.json ("group" of
alfworld).
"""

import argparse
import dataclasses
import itertools
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from gigpo_jax.config import resolve
from gigpo_jax.config.command_line import load_config
from gigpo_jax.devices.mesh import learner_mesh, replicated
from gigpo_jax.learner.expected_tokens import step_tokens
from gigpo_jax.learner.objective import make_config_optimizer
from gigpo_jax.learner.programs import policy_programs
from gigpo_jax.learner.signals.base import unscored_batch
from gigpo_jax.rl.types import StepBatch
from gigpo_jax.tools.preflight import report
from gigpo_jax.tools.preflight.compiled import Compiled, compile_program
from gigpo_jax.tools.preflight.shapes import model_shape, run_arrays, step_batch
from gigpo_jax.tools.preflight.targets import GIB, find_target, target_devices

RESULTS = Path(__file__).parent / "results"
RESULT = RESULTS / "compiled_trees.json"
FLAGS = ("--config.model.path=Qwen2.5-1.5B-Instruct", "--config.engine.name=vllm")


def read_savings() -> tuple[float, float]:
    """Rows, and responses of a row, of trees divided by the same numbers of separate texts."""
    results = json.loads((RESULTS / "shared_prefixes.json").read_text())["results"]
    (counts,) = [result for result in results if result["config"] == "alfworld"]

    def divide(name: str) -> float:
        return counts[f"update: group, shared: {name}"] / counts[f"update: group, separate: {name}"]

    return divide("rows"), divide("responses of a row")


def as_trees(batch: StepBatch, responses: float) -> StepBatch:
    """The shapes of a minibatch of trees, with so many times the responses of a row."""

    def widen(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        if leaf.ndim != 3 or leaf.shape[-1] == batch.tokens.shape[-1]:
            return leaf
        dims = (*leaf.shape[:2], round(leaf.shape[2] * responses))
        return jax.ShapeDtypeStruct(dims, leaf.dtype, sharding=leaf.sharding)

    batch = jax.tree.map(widen, batch)
    microbatches, rows, tokens = batch.segment_ids.shape
    segments = jax.ShapeDtypeStruct(
        (microbatches, rows, 2, tokens), jnp.int32, sharding=batch.segment_ids.sharding
    )
    return dataclasses.replace(batch, segment_ids=segments)


def compile_programs(target_name: str, programs: Sequence[str]) -> dict[str, Any]:
    """The numbers of the programs for a target, with both kinds of rows."""
    target = find_target(target_name)
    devices = target_devices(target)
    config = resolve(
        load_config("configs/alfworld.py:1.5b", [*FLAGS, f"--config.mesh.fsdp={target.count}"])
    )
    mesh = learner_mesh(config, devices)
    shape = model_shape(config)
    arrays = run_arrays(config, shape, mesh)
    optimizer = make_config_optimizer(config, config.train.iterations)
    shardings = jax.tree.map(lambda leaf: leaf.sharding, arrays.state)
    update, score, _ = policy_programs(config, shape, mesh, optimizer, shardings)
    row_tokens = config.batch.rows * config.batch.row_length
    # A fraction, as rows are compared: nothing is rounded to whole microbatches.
    microbatches = config.train.minibatch * step_tokens(config) / row_tokens
    batch = step_batch(config, shape, mesh, math.ceil(microbatches))
    rows, responses = read_savings()
    sides = {
        "separate": (batch, microbatches),
        "trees": (as_trees(batch, responses), microbatches * rows),
    }
    iteration = jax.ShapeDtypeStruct((), jnp.int32, sharding=replicated(mesh))
    rate = jax.ShapeDtypeStruct((), jnp.float32, sharding=replicated(mesh))
    frozen = arrays.policy.frozen
    result: dict[str, Any] = {}
    for program, (name, (minibatch, trips)) in itertools.product(programs, sides.items()):
        if program == "update":
            lowered = update.lower(arrays.state, minibatch, frozen, iteration, rate)
        else:
            lowered = score.lower(arrays.state.params, unscored_batch(minibatch), frozen)
        side = f"{program}: {name}"
        compiled = Compiled(side, *compile_program(side, lowered), (trips,), 1)
        numbers = report.measure_program(compiled, target.chip, {})
        result[side] = {
            "microbatches": round(trips, 2),
            "moved_gb": round(numbers["bytes"] / 1e9, 1),
            "products_tflop": round(numbers["operations"] / 1e12, 1),
            "sent_gb": round(sum(numbers["collectives"].values()) / 1e9, 1),
            "at_least_s": round(numbers["seconds"], 3),
            "limit": numbers["bound"],
            "temporaries_gib": round(numbers["temporaries"] / GIB, 2),
            "copies_gb": round(sum(copy["bytes"] for copy in numbers["copies"]) / 1e9, 1),
        }
        print(target_name, side, result[side], flush=True)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--targets", nargs="+", required=True)
    parser.add_argument("--programs", nargs="+", default=["update", "score"])
    args = parser.parse_args()
    results = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    for name in args.targets:
        results.setdefault(name, {}).update(compile_programs(name, args.programs))
        RESULT.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
