"""Experts: all arrangements equal their definition, and caches keep what the routers chose."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from gigpo_jax.models import decoder, decoding
from gigpo_jax.models.cache import BITS
from gigpo_jax.models.chunks import extend
from gigpo_jax.models.decoder import Params
from gigpo_jax.models.execution import REMAT_POLICIES
from gigpo_jax.models.expert_config import ExpertConfig
from gigpo_jax.models.experts import FEW_TOKENS, Router, apply_experts, multiply_transposed
from gigpo_jax.models.routes import chosen_experts, merge_routes
from tests.models.shapes import SMALL, on_cpus, random_params

pytestmark = pytest.mark.slow

COUNT = 6
WIDTH = 8
INNER = 12
SMALL_PROMPTS = [
    np.random.default_rng(i).integers(0, 61, length) for i, length in enumerate((9, 5))
]


def by_definition(x, ids, gates, gate, up, down):
    """Every token through every expert, one expert after the other."""
    out = jnp.zeros(x.shape)
    for expert in range(len(gate)):
        weight = jnp.where(ids == expert, gates, 0.0).sum(-1, keepdims=True)
        out += weight * ((jax.nn.silu(x @ gate[expert]) * (x @ up[expert])) @ down[expert])
    return out


def make_inputs(tokens: int, kind: str) -> tuple:
    rng = np.random.default_rng(0)
    ids = np.stack([rng.permutation(COUNT)[:2] for _ in range(tokens)])
    if kind == "two experts":
        ids = ids % 2 + 3
        ids[:, 1] = 7 - ids[:, 0]
    shapes = [(COUNT, WIDTH, INNER), (COUNT, WIDTH, INNER), (COUNT, INNER, WIDTH)]
    matrices = [jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes]
    x = jnp.asarray(rng.normal(size=(tokens, WIDTH)), jnp.float32)
    gates = jnp.asarray(rng.uniform(size=(tokens, 2)), jnp.float32)
    return x, jnp.asarray(ids), gates, *matrices


@pytest.mark.parametrize("kind", ["all experts", "two experts"])
@pytest.mark.parametrize(
    ("kernels", "tokens"), [("tpu", 300), ("cpu", 140), ("cpu", 5), ("gpu", 300)]
)
def test_arrangements_and_their_gradients_equal_the_definition(
    kernels: str, tokens: int, kind: str
) -> None:
    assert (tokens <= FEW_TOKENS[kernels]) == (tokens == 5)
    x, ids, *floats = make_inputs(tokens, kind)

    def loss(apply, x, gates, *matrices):
        out = apply(x, ids, gates, *matrices)
        return jnp.square(out).mean(), out

    functions = (by_definition, functools.partial(apply_experts, kernels=kernels))
    results = [
        jax.jit(jax.grad(functools.partial(loss, apply), argnums=range(5), has_aux=True))(
            x, *floats
        )
        for apply in functions
    ]
    for expected, found in zip(*map(jax.tree.leaves, results), strict=True):
        scale = np.abs(expected).max()
        np.testing.assert_allclose(found, expected, atol=1e-5 * scale, rtol=0)


def test_the_gradient_kernel_of_tpus_multiplies_groups() -> None:
    """As it is interpreted; rows behind the last group count for none."""
    rng = np.random.default_rng(0)
    rows, gradient = (rng.normal(size=(150, width)).astype(np.float32) for width in (7, 5))
    sizes = np.array([40, 0, 90, 3], np.int32)
    found = multiply_transposed(rows, gradient, sizes, interpret=True)
    starts = np.cumsum(sizes) - sizes
    for start, size, product in zip(starts, sizes, found, strict=True):
        group = slice(start, start + size)
        np.testing.assert_allclose(product, rows[group].T @ gradient[group], atol=1e-4)


@pytest.mark.parametrize(("kernels", "tokens"), [("tpu", 300), ("cpu", 140), ("cpu", 20)])
def test_parts_of_the_experts_add_up(kernels: str, tokens: int) -> None:
    x, ids, gates, *matrices = make_inputs(tokens, "all experts")
    whole = apply_experts(x, ids, gates, *matrices, kernels=kernels)
    parts = [
        apply_experts(
            x, ids - first, gates, *(each[first : first + 2] for each in matrices), kernels=kernels
        )
        for first in (0, 2, 4)
    ]
    np.testing.assert_allclose(sum(parts), whole, atol=1e-4)
    assert min(np.abs(part).max() for part in parts) > 0.1


@pytest.mark.parametrize(("kernels", "tokens"), [("tpu", 300), ("cpu", 300), ("cpu", 20)])
def test_gradients_of_parts_add_up(kernels: str, tokens: int) -> None:
    """Each part has the gradients of its matrices; gradients of tokens and gates are sums."""
    x, ids, gates, *matrices = make_inputs(tokens, "all experts")
    weights = jnp.asarray(np.random.default_rng(1).normal(size=x.shape), jnp.float32)

    @functools.partial(jax.jit, static_argnums=0)
    def gradients(first: int, *floats: jax.Array) -> tuple:
        def loss(x, gates, *matrices):
            return (
                weights * apply_experts(x, ids - first, gates, *matrices, kernels=kernels)
            ).sum()

        return jax.grad(loss, argnums=range(5))(*floats)

    whole = gradients(0, x, gates, *matrices)
    parts = [
        gradients(first, x, gates, *(each[first : first + 3] for each in matrices))
        for first in (0, 3)
    ]
    for expected, found in zip(whole[:2], zip(*(part[:2] for part in parts)), strict=True):
        np.testing.assert_allclose(sum(found), expected, atol=1e-3)
        assert min(np.abs(part).max() for part in found) > 0.1
    for expected, found in zip(whole[2:], zip(*(part[2:] for part in parts)), strict=True):
        np.testing.assert_allclose(jnp.concatenate(found), expected, atol=1e-3)


@pytest.mark.parametrize(("kernels", "tokens"), [("tpu", 2000), ("cpu", 2000), ("cpu", 20)])
def test_bfloat16_is_rounded_and_not_added_up(kernels: str, tokens: int) -> None:
    """Results and gradients differ from float32 results of the same numbers by roundings."""
    x, ids, gates, *matrices = make_inputs(tokens, "two experts")
    x, *matrices = (array.astype(jnp.bfloat16) for array in (x, *matrices))

    @jax.jit
    def evaluate(x, gates, *matrices):
        def loss(x, gates, *matrices):
            out = apply_experts(x, ids, gates, *matrices, kernels=kernels)
            return out.astype(jnp.float32).sum(), out

        return jax.grad(loss, argnums=range(5), has_aux=True)(x, gates, *matrices)

    narrow = evaluate(x, gates, *matrices)
    wide = evaluate(*(array.astype(jnp.float32) for array in (x, gates, *matrices)))
    for found, expected in zip(*map(jax.tree.leaves, (narrow, wide)), strict=True):
        error = np.linalg.norm(found.astype(jnp.float32) - expected) / np.linalg.norm(expected)
        # A rounding is 2**-9 at most.
        assert error < 0.01


def test_no_array_of_all_tokens_and_all_experts_is_made() -> None:
    """64 experts: arrays of N x E x F would take 67 MB, arrays of N x k x F take 2."""
    tokens, count = 2048, 64
    shapes = [(tokens, 16), (tokens, 2), (tokens, 2), (count, 16, 128), (count, 16, 128)]
    x, ids, gates, gate, up = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)
    ids = jax.ShapeDtypeStruct(ids.shape, jnp.int32)
    down = jax.ShapeDtypeStruct((count, 128, 16), jnp.float32)

    def loss(x, gates, gate, up, down, ids):
        return apply_experts(x, ids, gates, gate, up, down, kernels="cpu").sum()

    gradient = jax.jit(jax.grad(loss, argnums=range(5)))
    compiled = gradient.lower(x, gates, gate, up, down, ids).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 4 * tokens * count * 128 / 2


def test_routers_choose_in_float32_and_replay_what_they_are_given() -> None:
    experts = ExpertConfig(8, 3, 4)
    router = Router(16, experts, dtype=jnp.float32, rngs=nnx.Rngs(0))
    router.kernel[...] = jax.random.normal(jax.random.key(1), (16, 8))
    x = jax.random.normal(jax.random.key(2), (5, 4, 16)).astype(jnp.bfloat16)
    kernel = router.kernel[...].astype(jnp.bfloat16)
    scores = np.asarray(x, np.float64) @ np.asarray(kernel, np.float64)
    probs = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    ids, gates = router(x)
    assert gates.dtype == jnp.float32
    np.testing.assert_array_equal(ids, np.argsort(-probs, axis=-1)[..., :3])
    chosen = np.take_along_axis(probs, np.asarray(ids), -1)
    # 1e-6: rounded to bfloat16 the scores would be off by 1e-2.
    np.testing.assert_allclose(gates, chosen / chosen.sum(-1, keepdims=True), rtol=1e-5)

    replayed = np.array(ids)[..., ::-1] ^ 1  # other experts, in another order
    again, gates = router(x, jnp.asarray(replayed, jnp.uint8))
    np.testing.assert_array_equal(again, replayed)
    chosen = np.take_along_axis(probs, replayed, -1)
    np.testing.assert_allclose(gates, chosen / chosen.sum(-1, keepdims=True), rtol=1e-5)

    router.experts = dataclasses.replace(experts, normalized=False)
    np.testing.assert_allclose(router(x, replayed)[1], chosen, rtol=1e-5)


@functools.cache
def params_of(name: str) -> Params:
    return random_params(SMALL[name])


@pytest.mark.parametrize(
    ("name", "dtype", "for_cpu", "chunk"),
    [
        ("moe", "float32", False, 4),
        ("moe_mixed", "float32", False, 0),
        ("moe_mixed", "bfloat16", True, 4),
    ],
)
def test_cached_equals_uncached_and_the_cache_keeps_the_experts(
    name: str, dtype: str, for_cpu: bool, chunk: int
) -> None:
    """Prefill (whole or in chunks) and decoding, against the forward pass with the kept experts."""
    config = SMALL[name]
    params = jax.tree.map(lambda leaf: leaf.astype(dtype), params_of(name))
    cached_config, cached_params = on_cpus(config, params) if for_cpu else (config, params)
    store = BITS if for_cpu else dtype
    cache = decoding.init_cache(cached_config, 3, 12, store, keeps_routes=True)
    slots = np.array([2, 0])
    read = (6, 3)
    rows = np.zeros((2, 8), np.int32)
    for row, prompt in zip(rows, SMALL_PROMPTS, strict=True):
        row[: read[len(prompt) == 5]] = prompt[: read[len(prompt) == 5]]
    if chunk:
        for start in (0, chunk):
            lengths = np.clip(np.array(read) - start, 0, chunk)
            targets = np.where(lengths > 0, slots, 3)
            piece = rows[:, start : start + chunk]
            starts = np.full(2, start)
            _, cache = jax.jit(functools.partial(extend, cached_config))(
                cached_params, cache, piece, lengths, targets, starts
            )
    else:
        _, cache = jax.jit(functools.partial(decoding.prefill, cached_config))(
            cached_params, cache, rows, np.array(read), slots
        )
    decode = jax.jit(functools.partial(decoding.decode, cached_config, cached_params))
    found = {}
    for step in range(3):
        tokens = np.zeros(3, np.int32)
        positions = np.full(3, 12)
        for slot, prompt, start in zip(slots, SMALL_PROMPTS, read, strict=True):
            if start + step < len(prompt):
                tokens[slot], positions[slot] = prompt[start + step], start + step
        out, cache = decode(cache, tokens, positions)
        found |= {(slot, positions[slot]): out[slot] for slot in slots if positions[slot] < 12}
    assert len(found) == 5
    assert cache.routes.dtype == np.uint8
    routes = merge_routes(cache.routes[:, :, 0])  # [S, C, R]
    for slot, prompt in zip(slots, SMALL_PROMPTS, strict=True):
        kept = routes[slot, : len(prompt)][None]
        forward = functools.partial(decoder.hidden_states, config, params, prompt[None])
        expected = decoder.score_tokens(config, params, forward(routes=kept))[0]
        for position in range(read[len(prompt) == 5], len(prompt)):
            atol = 0.2 if dtype == "bfloat16" else 1e-5
            np.testing.assert_allclose(found[slot, position], expected[position], atol=atol)
        if dtype == "float32":
            chosen = chosen_experts(config, params, prompt[None])
            np.testing.assert_array_equal(kept, chosen)


def test_replayed_experts_are_used() -> None:
    config = SMALL["moe"]
    params = params_of("moe")
    tokens = SMALL_PROMPTS[0][None]
    chosen = chosen_experts(config, params, tokens)
    assert chosen.shape == (1, 9, config.num_layers * 2)
    plain = decoder.hidden_states(config, params, tokens)
    same = decoder.hidden_states(config, params, tokens, routes=chosen)
    np.testing.assert_allclose(same, plain, atol=1e-6)
    other = decoder.hidden_states(config, params, tokens, routes=(chosen + 1) % 6)
    assert np.abs(other - plain).max() > 0.1


@pytest.mark.parametrize("remat", sorted(REMAT_POLICIES))
def test_remat_equals_plain(remat: str) -> None:
    config = SMALL["moe"]
    tokens = np.stack([prompt[:5] for prompt in SMALL_PROMPTS])

    def loss(params: Params, execution: decoder.Execution) -> jax.Array:
        return jnp.square(decoder.hidden_states(config, params, tokens, execution=execution)).mean()

    gradient = jax.jit(jax.grad(loss), static_argnums=1)
    executions = (decoder.Execution(), decoder.Execution(remat=remat))
    plain, again = (gradient(params_of("moe"), execution) for execution in executions)
    for first, second in zip(jax.tree.leaves(plain), jax.tree.leaves(again), strict=True):
        np.testing.assert_allclose(second, first, rtol=1e-4, atol=1e-6)
