"""The experts of a layer: pairs of token and expert in blocks, against all experts for all tokens.

    python benchmarks/experts.py [--width 512] [--experts 32] [--chosen 4] [--inner 192]

Writes benchmarks/results/experts.json. "blocks" is `models.experts.apply_experts`; "loop" goes over
the experts and sends every token through each, as a definition would. Both run in turns in one
process, forward and with all gradients, in float32, and must give the same numbers.
"""

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gigpo_jax.models.experts import apply_experts

TURNS = 7


def apply_loop(
    x: jax.Array,
    ids: jax.Array,
    gates: jax.Array,
    gate: jax.Array,
    up: jax.Array,
    down: jax.Array,
) -> jax.Array:
    """Every token through every expert, one expert after the other."""

    def add_expert(total: jax.Array, expert: tuple[jax.Array, ...]) -> tuple[jax.Array, None]:
        number, gate, up, down = expert
        weight = jnp.sum(jnp.where(ids == number, gates, 0.0), axis=-1, keepdims=True)
        return total + weight * ((jax.nn.silu(x @ gate) * (x @ up)) @ down), None

    experts = (jnp.arange(len(gate)), gate, up, down)
    return jax.lax.scan(add_expert, jnp.zeros_like(x), experts)[0]


def make_inputs(args: argparse.Namespace, tokens: int) -> tuple[jax.Array, ...]:
    """Random tokens, experts drawn alike, and random matrices."""
    rng = np.random.default_rng(0)
    ids = np.argsort(rng.random((tokens, args.experts)), axis=1)[:, : args.chosen]

    def draw(*shape: int) -> jax.Array:
        return jnp.asarray(rng.normal(size=shape) / shape[-2] ** 0.5, jnp.float32)

    into = (args.experts, args.width, args.inner)
    gates = jnp.full(ids.shape, 1.0 / args.chosen, jnp.float32)
    matrices = (draw(*into), draw(*into), draw(args.experts, args.inner, args.width))
    return (draw(tokens, args.width), jnp.asarray(ids), gates, *matrices)


def with_gradients(apply: Callable[..., jax.Array]) -> Callable[..., Any]:
    """Gradients of a mean square by tokens, gates and matrices."""

    def loss(x: jax.Array, gates: jax.Array, ids: jax.Array, *matrices: jax.Array) -> jax.Array:
        return jnp.mean(jnp.square(apply(x, ids, gates, *matrices)))

    gradient = jax.grad(loss, argnums=(0, 1, 3, 4, 5))
    return lambda x, ids, gates, *matrices: gradient(x, gates, ids, *matrices)


def measure(args: argparse.Namespace, tokens: int) -> dict[str, Any]:
    """Median milliseconds of both forms, and temporaries of the programs in MiB."""
    inputs = make_inputs(args, tokens)
    forms = {"blocks": apply_experts, "loop": apply_loop}
    result: dict[str, Any] = {"tokens": tokens}
    for kind, wrap in {"forward": lambda apply: apply, "gradients": with_gradients}.items():
        programs = {}
        for name, apply in forms.items():
            programs[name] = jax.jit(wrap(apply)).lower(*inputs).compile()
        outputs = [program(*inputs) for program in programs.values()]
        for one, other in zip(*map(jax.tree.leaves, outputs), strict=True):
            np.testing.assert_allclose(one, other, atol=1e-4 * float(jnp.abs(other).max()))
        times: dict[str, list[float]] = {name: [] for name in programs}
        for _ in range(TURNS):
            for name, program in programs.items():
                start = time.perf_counter()
                jax.block_until_ready(program(*inputs))
                times[name].append(time.perf_counter() - start)
        medians = {name: 1e3 * float(np.median(values)) for name, values in times.items()}
        result[kind] = medians | {"ratio": medians["loop"] / medians["blocks"]}
        for name, program in programs.items():
            memory = program.memory_analysis()
            assert memory is not None
            size = memory.temp_size_in_bytes
            result[kind][f"{name}_temporaries_mib"] = size / 2**20
    return result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--inner", type=int, default=192)
    parser.add_argument("--experts", type=int, default=32)
    parser.add_argument("--chosen", type=int, default=4)
    parser.add_argument("--tokens", type=int, nargs="+", default=[16, 64, 256, 2048])
    parser.add_argument(
        "--output", type=Path, default=Path(__file__).parent / "results/experts.json"
    )
    args = parser.parse_args()
    rows = [measure(args, tokens) for tokens in args.tokens]
    for row in rows:
        for kind in ("forward", "gradients"):
            times = row[kind]
            print(
                f"{row['tokens']:6} tokens, {kind:9}: blocks {times['blocks']:8.2f} ms, "
                f"loop {times['loop']:8.2f} ms, ratio {times['ratio']:.2f}"
            )
    content = {
        "machine": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "jax": jax.__version__,
        "shape": {name: getattr(args, name) for name in ("width", "inner", "experts", "chosen")},
        "rows": rows,
    }
    args.output.write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    main()
