"""Updates and scores with what prompts share computed once, beside separate prompts, in one run.

    python -m benchmarks.shared_prefixes [--configs alfworld webshop search]
                                         [--repeats 3]   # 0: tokens and rows are counted alone

The prompts are from benchmarks/prefill.py (published configs on generated data, words as
tokens), with random responses of 64 tokens. An iteration has the groups and the minibatches of its
config. The rows of all its minibatches are counted; `TIMED` of them are timed, because a row costs
the same whatever stands in it. The model is 256 wide with 2 layers, float32. The sides take turns;
the gains are medians of neighbouring turns, of CPU time times rows.

* "random": minibatches of steps in random order, as in training.
* "group": minibatches of whole task groups (`train.minibatch_by=group`).
* "sorted": in the order of tokens, as scores are computed.
"""

import argparse
import dataclasses
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.prefill import encode_words, experiments, play_prompts
from gigpo_jax.config import resolve
from gigpo_jax.learner.packing import make_minibatches, packing_stats
from gigpo_jax.learner.samples import Sample
from gigpo_jax.models import decoder
from gigpo_jax.rl.batch_logprobs import make_logprobs
from gigpo_jax.rl.losses import LossSettings
from gigpo_jax.rl.optimizer import make_optimizer
from gigpo_jax.rl.train_step import init_state
from gigpo_jax.rl.update import make_update

RESULT = Path(__file__).parent / "results" / "shared_prefixes.json"
MODEL = decoder.DecoderConfig(4096, 256, 768, 2, 4, 2, 64)
RESPONSE = 64  # tokens
TIMED = 3  # rows


def play_samples(name: str) -> tuple[list[Sample], list[int]]:
    """The steps of an iteration, and their task groups."""
    config, error_rate = experiments()[name]
    train = resolve(config).train
    vocabulary = MODEL.vocab_size
    rng = np.random.default_rng(0)
    behaviour = np.full(RESPONSE, -np.log(vocabulary), np.float32)
    samples = []
    groups = []
    for index, prompts in enumerate(play_prompts(config, error_rate, train.groups, encode_words)):
        for prompt in prompts:
            response = rng.integers(0, vocabulary, RESPONSE).astype(np.int32)
            samples.append(Sample(prompt % vocabulary, response, behaviour, float(rng.normal())))
            groups.append(index // train.group_size)
    return samples, groups


def make_programs() -> dict[str, Callable[[Any], None]]:
    """Calls that update from a minibatch or score it."""

    def forward(
        params: decoder.Params, _: Any, tokens: Any, positions: Any, segments: Any, images: Any
    ) -> tuple[jax.Array, jax.Array]:
        del images
        # Rows are less than three texts long, so they are whole for both kinds.
        execution = decoder.Execution()
        hidden = decoder.hidden_states(MODEL, params, tokens, positions, segments, execution)
        return hidden, decoder.output_embedding(MODEL, params)

    optimizer = make_optimizer(lr=1e-6)
    update = make_update(forward, optimizer, LossSettings(clip_low=0.2, clip_high=0.2))
    logprobs = make_logprobs(forward)
    params = decoder.init_params(MODEL, jax.random.key(0))
    state = init_state(jax.tree.map(jnp.copy, params), optimizer)

    def run_update(batch: Any) -> None:
        nonlocal state
        state, metrics = update(state, batch)
        float(metrics["policy/loss"])

    def run_score(batch: Any) -> None:
        logprobs(params, batch).block_until_ready()

    return {"update": run_update, "score": run_score}


def compare(name: str, repeats: int) -> dict[str, Any]:
    """Counts the rows of all sides and times some in turn."""
    samples, groups = play_samples(name)
    # As in the published configs a row is longer than the longest text, and less than three times.
    row_length = 1 << round(1.5 * max(sample.length for sample in samples) - 1).bit_length()
    steps = resolve(experiments()[name][0]).train.minibatch
    total = sum(sample.length for sample in samples)
    result: dict[str, Any] = {
        "config": name,
        "groups": groups[-1] + 1,
        "steps": len(samples),
        "minibatch": steps,
        "row_length": row_length,
        "tokens": total,
    }
    orders = {"update: random": None, "update: group": groups, "score: sorted": None}
    rows = {}
    timed = {}
    for order, order_groups in orders.items():
        for kind, longest_tree in {"separate": 0, "shared": row_length}.items():
            batches = make_minibatches(
                samples,
                steps=steps,
                row_length=row_length,
                rows=1,
                longest_tree=longest_tree,
                # Both kinds have the same minibatches.
                rng=None if order == "score: sorted" else np.random.default_rng(0),
                groups=order_groups,
            )
            side = f"{order}, {kind}"
            if kind == "separate":
                sizes = [packing_stats([batch])["batch/steps"] for batch in batches]
                extremes = [min(sizes), max(sizes)]
                shares = [round(size * len(sizes) / len(samples), 2) for size in extremes]
                result[f"{order}: smallest and largest minibatch, of the mean"] = shares
            rows[side] = sum(int(batch.microbatches) for batch in batches)
            tokens = packing_stats(batches)["batch/tokens"]
            result[f"{side}: tokens"] = round(tokens / total, 3)
            result[f"{side}: rows"] = round(rows[side] * row_length / total, 3)
            result[f"{side}: responses of a row"] = batches[0].targets.shape[-1]
            batch = batches[0]
            count = np.minimum(batch.microbatches, np.int32(TIMED))
            timed[side] = jax.tree.map(jnp.asarray, dataclasses.replace(batch, microbatches=count))
    if repeats:
        result |= time_sides(rows, timed, repeats)
    return result


def time_sides(rows: dict[str, int], timed: dict[str, Any], repeats: int) -> dict[str, float]:
    """CPU seconds of all rows of each side, and gains over separate texts."""
    programs = make_programs()
    seconds: dict[str, list[float]] = {side: [] for side in timed}
    for turn in range(1 + repeats):
        for side, batch in timed.items():
            start = time.process_time()
            programs[side.partition(":")[0]](batch)
            elapsed = time.process_time() - start
            # The first turn compiles.
            if turn:
                seconds[side].append(elapsed / int(batch.microbatches) * rows[side])
    result = {}
    for side, times in seconds.items():
        base = "score: sorted" if side.startswith("score") else "update: random"
        pairs = zip(seconds[f"{base}, separate"], times, strict=True)
        result[f"{side}: CPU s"] = round(statistics.median(times), 2)
        result[f"{side}: gain"] = round(statistics.median(slow / fast for slow, fast in pairs), 2)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--configs", nargs="+", default=["alfworld", "webshop", "search"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULT)
    args = parser.parse_args()
    results = []
    for name in args.configs:
        result = compare(name, args.repeats)
        results.append(result)
        print(*(f"{key}: {value}" for key, value in result.items()), "", sep="\n", flush=True)
    record = {
        "results": results,
        "model": dataclasses.asdict(MODEL),
        "machine": {"cores": os.cpu_count(), "python": platform.python_version()},
        "jax": jax.__version__,
    }
    args.out.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
