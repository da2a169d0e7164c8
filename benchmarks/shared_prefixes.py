"""Updates and scores with what prompts share computed once, beside separate prompts, in one run.

    python -m benchmarks.shared_prefixes [--configs alfworld webshop search] [--groups 1]
                                         [--repeats 3]   # 0: tokens and rows are counted alone

The prompts are those of benchmarks/prefill.py (published configs on generated data, words as
tokens), with random responses of 64 tokens, the model 256 wide with 4 layers, float32. An iteration has `--groups` task groups, and its
minibatches are smaller by the same factor as the iteration: they share as much within a group as
those of a whole iteration. All minibatches of the iteration count. The sides take turns; the ratios
are medians of neighbouring turns, of CPU time.

* "random": minibatches of steps in random order, as in training.
* "sorted": in the order of tokens, so that a task group meets in few minibatches.
"""

import argparse
import dataclasses
import functools
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
from gigpo_jax.rl.losses import LossSettings
from gigpo_jax.rl.optimizer import make_optimizer
from gigpo_jax.rl.update import init_state, make_logprobs, make_update

RESULT = Path(__file__).parent / "results" / "shared_prefixes.json"
MODEL = decoder.DecoderConfig(4096, 256, 768, 4, 4, 2, 64)
RESPONSE = 64  # tokens
ROWS = 1  # of a microbatch


def play_samples(name: str, groups: int) -> list[Sample]:
    """The steps of an iteration with so many task groups."""
    config, error_rate = experiments()[name]
    vocabulary = MODEL.vocab_size
    rng = np.random.default_rng(0)
    behaviour = np.full(RESPONSE, -np.log(vocabulary), np.float32)
    samples = []
    for prompts in play_prompts(config, error_rate, groups, encode_words):
        for prompt in prompts:
            response = rng.integers(0, vocabulary, RESPONSE).astype(np.int32)
            samples.append(Sample(prompt % vocabulary, response, behaviour, float(rng.normal())))
    return samples


def make_sides(
    samples: list[Sample], row_length: int, steps: int
) -> tuple[dict[str, Callable[[int | None], None]], dict[str, Any]]:
    """Calls that update or score all samples, and the tokens that they compute."""

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
    total = sum(sample.length for sample in samples)
    stats: dict[str, Any] = {"steps": len(samples), "tokens": total}

    def make_batches(name: str, order: int | None, longest_tree: int) -> list[Any]:
        batches = make_minibatches(
            samples,
            steps=steps,
            row_length=row_length,
            rows=ROWS,
            rng=None if order is None else np.random.default_rng(order),
            longest_tree=longest_tree,
        )
        rows = sum(int(batch.microbatches) for batch in batches) * ROWS
        stats[f"{name}: tokens"] = round(packing_stats(batches)["batch/tokens"] / total, 3)
        stats[f"{name}: rows"] = round(rows * row_length / total, 3)
        stats[f"{name}: responses of a row"] = batches[0].targets.shape[-1]
        return [jax.tree.map(jnp.asarray, batch) for batch in batches]

    orders = {"random": 0, "sorted": None}
    batches = {
        f"{order}, {kind}": make_batches(f"{order}, {kind}", orders[order], longest_tree)
        for order in orders
        for kind, longest_tree in {"separate": 0, "shared": row_length}.items()
    }

    def update_all(name: str, number: int | None) -> None:
        nonlocal state
        for batch in batches[name][:number]:
            state, metrics = update(state, batch)
        float(metrics["policy/loss"])

    def score_all(name: str, number: int | None) -> None:
        for batch in batches[name][:number]:
            scores = logprobs(params, batch)
        scores.block_until_ready()

    sides: dict[str, Callable[[int | None], None]] = {}
    for name in batches:
        if name != "sorted, separate":
            sides[f"update {name}"] = functools.partial(update_all, name)
        if name.startswith("sorted"):
            sides[f"score {name}"] = functools.partial(score_all, name)
    return sides, stats


def compare(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """Times all sides in turn."""
    config = resolve(experiments()[name][0])
    samples = play_samples(name, args.groups)
    # As in the published configs a row is longer than the longest text, and less than three times.
    row_length = 1 << round(1.5 * max(sample.length for sample in samples) - 1).bit_length()
    steps = max(1, round(config.train.minibatch * args.groups / config.train.groups))
    sides, stats = make_sides(samples, row_length, steps)
    result = {"config": name, "minibatch": steps, "row_length": row_length, **stats}
    if not args.repeats:
        return result
    for run in sides.values():
        run(1)  # compiles
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(args.repeats):
        for side, run in sides.items():
            start = time.process_time()
            run(None)
            seconds[side].append(time.process_time() - start)
    for side, times in seconds.items():
        base = "score sorted, separate" if side.startswith("score") else "update random, separate"
        pairs = zip(seconds[base], times, strict=True)
        result[f"{side}: CPU s"] = round(statistics.median(times), 2)
        result[f"{side}: gain"] = round(statistics.median(slow / fast for slow, fast in pairs), 2)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--configs", nargs="+", default=["alfworld", "webshop", "search"])
    parser.add_argument("--groups", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULT)
    args = parser.parse_args()
    results = []
    for name in args.configs:
        result = compare(name, args)
        results.append(result)
        print(*(f"{key}: {value}" for key, value in result.items()), "", sep="\n", flush=True)
    record = {
        "results": results,
        "model": dataclasses.asdict(MODEL),
        "groups": args.groups,
        "machine": {"cores": os.cpu_count(), "python": platform.python_version()},
        "jax": jax.__version__,
    }
    args.out.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
