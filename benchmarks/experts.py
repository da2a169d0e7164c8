"""The experts of a layer: pairs of token and expert in rows, against all experts for all tokens.

    python benchmarks/experts.py [--shapes 512x192x32x4 512x192x128x8] [--tokens 8 64 2048]

Writes benchmarks/results/experts.json. "rows" and "all" are the two ways of
`models.experts.apply_experts`, between which `FEW_TOKENS` decides; "loop" goes over the experts and
sends every token through each, as a definition would. They run in turns in one process, forward and
with all gradients, in float32, and must give the same numbers. On CPUs times are CPU times.
"""

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from gigpo_jax.models.experts import FEW_TOKENS, apply_experts

TURNS = 5
# CPU time, where other work on the cores would count too.
CLOCK = time.process_time if jax.default_backend() == "cpu" else time.perf_counter
# Form -> up to how many tokens go through all experts.
LIMITS = {"rows": 0, "all": 2**30}


class Shape(NamedTuple):
    """Width of a token, width inside an expert, experts, and experts of a token."""

    width: int
    inner: int
    experts: int
    chosen: int


def read_shape(text: str) -> Shape:
    """Reads a shape such as 512x192x32x4."""
    return Shape(*map(int, text.split("x")))


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


def make_inputs(shape: Shape, tokens: int) -> tuple[jax.Array, ...]:
    """Random tokens, experts drawn alike, and random matrices."""
    rng = np.random.default_rng(0)
    ids = np.argsort(rng.random((tokens, shape.experts)), axis=1)[:, : shape.chosen]

    def draw(*sizes: int) -> jax.Array:
        return jnp.asarray(rng.normal(size=sizes) / sizes[-2] ** 0.5, jnp.float32)

    into = (shape.experts, shape.width, shape.inner)
    gates = jnp.full(ids.shape, 1.0 / shape.chosen, jnp.float32)
    matrices = (draw(*into), draw(*into), draw(shape.experts, shape.inner, shape.width))
    return (draw(tokens, shape.width), jnp.asarray(ids), gates, *matrices)


def with_gradients(apply: Callable[..., jax.Array]) -> Callable[..., Any]:
    """Gradients of a mean square by tokens, gates and matrices."""

    def loss(x: jax.Array, gates: jax.Array, ids: jax.Array, *matrices: jax.Array) -> jax.Array:
        return jnp.mean(jnp.square(apply(x, ids, gates, *matrices)))

    gradient = jax.grad(loss, argnums=(0, 1, 3, 4, 5))
    return lambda x, ids, gates, *matrices: gradient(x, gates, ids, *matrices)


def compile_forms(
    inputs: tuple[jax.Array, ...], wrap: Callable[..., Any]
) -> dict[str, jax.stages.Compiled]:
    """Compiles all forms."""
    programs = {}
    for name, limit in LIMITS.items():
        with mock.patch.dict(FEW_TOKENS, dict.fromkeys(FEW_TOKENS, limit)):
            # A function of its own, so that no trace of the other limit is used.
            programs[name] = jax.jit(wrap(lambda *args: apply_experts(*args))).lower(*inputs)
    programs["loop"] = jax.jit(wrap(apply_loop)).lower(*inputs)
    return {name: program.compile() for name, program in programs.items()}


def measure(shape: Shape, tokens: int) -> dict[str, Any]:
    """Median milliseconds of the forms, and temporaries of the programs in MiB."""
    inputs = make_inputs(shape, tokens)
    result: dict[str, Any] = {"shape": shape._asdict(), "tokens": tokens}
    for kind, wrap in {"forward": lambda apply: apply, "gradients": with_gradients}.items():
        programs = compile_forms(inputs, wrap)
        expected = jax.tree.leaves(programs["loop"](*inputs))
        for name in LIMITS:
            for one, other in zip(jax.tree.leaves(programs[name](*inputs)), expected, strict=True):
                np.testing.assert_allclose(one, other, atol=1e-4 * float(jnp.abs(other).max()))
        times: dict[str, list[float]] = {name: [] for name in programs}
        for _ in range(TURNS):
            for name, program in programs.items():
                start = CLOCK()
                jax.block_until_ready(program(*inputs))
                times[name].append(CLOCK() - start)
        result[kind] = {name: 1e3 * float(np.median(values)) for name, values in times.items()}
        for name, program in programs.items():
            memory = program.memory_analysis()
            assert memory is not None
            result[kind][f"{name}_temporaries_mib"] = memory.temp_size_in_bytes / 2**20
    return result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--shapes",
        type=read_shape,
        nargs="+",
        default=[Shape(512, 192, 32, 4), Shape(512, 192, 128, 8)],
        help="width x inner x experts x chosen",
    )
    parser.add_argument("--tokens", type=int, nargs="+", default=[8, 32, 64, 128, 256, 512])
    parser.add_argument(
        "--output", type=Path, default=Path(__file__).parent / "results/experts.json"
    )
    args = parser.parse_args()
    rows = []
    for shape in args.shapes:
        print(f"width {shape.width}, inner {shape.inner}, {shape.chosen} of {shape.experts}")
        for tokens in args.tokens:
            row = measure(shape, tokens)
            rows.append(row)
            for kind in ("forward", "gradients"):
                times = ", ".join(f"{name} {row[kind][name]:.2f}" for name in (*LIMITS, "loop"))
                print(f"{tokens:6} tokens, {kind}, ms: {times}", flush=True)
    content = {
        "machine": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "jax": jax.__version__,
        "rows": rows,
    }
    args.output.write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    main()
