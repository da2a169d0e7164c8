"""The train step against a plain implementation that knows nothing of rows, microbatches or
chunks.
"""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from gigpo_jax.learner.packing import make_minibatches
from gigpo_jax.learner.samples import Sample
from gigpo_jax.models import decoder, next_tokens
from gigpo_jax.rl.batch_logprobs import make_logprobs
from gigpo_jax.rl.imitation_update import make_sft_update
from gigpo_jax.rl.losses import LossSettings
from gigpo_jax.rl.optimizer import Optimizer, make_optimizer, scheduled_rates
from gigpo_jax.rl.train_step import TrainState, init_state
from gigpo_jax.rl.types import StepBatch
from gigpo_jax.rl.update import make_update

CONFIG = decoder.DecoderConfig(97, 32, 64, 2, 4, 2, 8)
CLIP = {"clip_low": 0.2, "clip_high": 0.28, "dual_clip": 3.0}


def forward(params, _, tokens, positions, segment_ids, images, *, remat="none", dtype=None):
    hidden = decoder.hidden_states(
        CONFIG, params, tokens, positions, segment_ids, decoder.Execution(dtype, remat)
    )
    return hidden, decoder.output_embedding(CONFIG, params)


@functools.cache
def params(seed: int = 0):
    tree = decoder.init_params(CONFIG, jax.random.key(seed))
    return jax.tree.map(
        lambda x: 4.0 * x if x.ndim > 1 else x, tree
    )  # far from uniform, so that errors show


OPTIMIZER = make_optimizer(lr=1e-2, weight_decay=0.01, grad_clip=0.5)


@functools.cache
def shared_update():
    """One compiled program for the tests that need no other settings."""
    return make_update(forward, OPTIMIZER, LossSettings(**CLIP))


def fresh(optimizer, seed: int = 0) -> TrainState:
    return init_state(jax.tree.map(jnp.copy, params(seed)), optimizer)


LONGEST = 24


def make_samples(n: int = 13, seed: int = 0) -> list[Sample]:
    """Samples whose behaviour log-probabilities are near the policy's own, so that some ratios are
    clipped.
    """
    rng = np.random.default_rng(seed)
    out = []
    for _ in range(n):
        p = int(rng.integers(1, 14))
        r = int(rng.integers(1, 8))
        tokens = rng.integers(0, 97, p + r).astype(np.int32)
        behaviour = (plain_logprobs(params(), tokens, p) + rng.normal(0, 0.3, r)).astype(np.float32)
        out.append(Sample(tokens[:p], tokens[p:], behaviour, float(rng.normal()), 1.0))
    return out


def plain_logprobs(p, tokens: np.ndarray, prompt: int, temperature: float = 1.0) -> np.ndarray:
    """Log-probabilities of the response, one sample alone; the model is causal, so zeros on the
    right are harmless.
    """
    table = np.asarray(plain_table(p, np.pad(tokens, (0, LONGEST - len(tokens))), temperature))
    return table[np.arange(prompt - 1, len(tokens) - 1), tokens[prompt:]]


@jax.jit
def plain_table(p, tokens: jax.Array, temperature: float = 1.0) -> jax.Array:
    """[LONGEST] -> [LONGEST, V], all log-probabilities of one row without segments."""
    return jax.nn.log_softmax(next_tokens.logits(CONFIG, p, tokens[None])[0] / temperature)


REFERENCE = 0.97  # the tests' reference log-probability is this times the behaviour policy's


def plain_loss(p, samples: list[Sample], kl_coef: float, entropy_coef: float) -> jax.Array:
    """The objective of the minibatch, from one padded row a sample and whole [n, LONGEST, V]
    arrays.
    """
    tokens = np.zeros((len(samples), LONGEST), int)
    own = np.zeros((len(samples), LONGEST), bool)
    old = np.zeros(own.shape, np.float32)
    a = np.array([[s.advantage] for s in samples], np.float32)
    for i, s in enumerate(samples):
        n = len(s.prompt_tokens)
        r = len(s.response_tokens)
        tokens[i, : n + r] = np.concatenate([s.prompt_tokens, s.response_tokens])
        own[i, n : n + r], old[i, n : n + r] = True, s.logprobs
    where = (*np.indices(own[:, 1:].shape), tokens[:, 1:])
    every = jax.vmap(plain_table, (None, 0))(p, jnp.asarray(tokens))[:, :-1]
    own = own[:, 1:]
    old = old[:, 1:]
    logp = every[where]
    ratio = jnp.exp(jnp.where(own, logp - old, 0.0))
    gap = jnp.where(own, REFERENCE * old - logp, 0.0)
    cost = jnp.maximum(-a * ratio, -a * jnp.clip(ratio, 0.8, 1.28))
    cost = jnp.where(a < 0, jnp.minimum(cost, -3.0 * a), cost)
    entropy = -(jnp.exp(every) * every).sum(-1)
    cost = cost + kl_coef * (jnp.exp(gap) - gap - 1) - entropy_coef * entropy
    return jnp.where(own, cost, 0.0).sum() / own.sum()


@functools.cache
def plain_program():
    samples = make_samples()
    return jax.jit(lambda p, kl, entropy: jax.value_and_grad(plain_loss)(p, samples, kl, entropy))


def plain_gradient(kl_coef: float, entropy_coef: float):
    """Loss and gradient of `plain_loss` for `make_samples()` at `params()`."""
    return plain_program()(params(), kl_coef, entropy_coef)


def pack(samples: list[Sample], *, row_length: int = 40, rows: int = 2) -> StepBatch:
    (batch,) = make_minibatches(
        samples, steps=len(samples), row_length=row_length, rows=rows, rng=np.random.default_rng(0)
    )
    return jax.tree.map(jnp.asarray, batch)


def plain_adamw(
    p, grads, *, lr: float, steps_done: int = 0, decay: float = 0.01, clip: float = 1.0
):
    """The first AdamW step from zero moments, written out."""
    assert steps_done == 0
    norm = math.sqrt(
        sum(
            float((g.astype(np.float64) ** 2).sum())
            for g in map(np.asarray, jax.tree.leaves(grads))
        )
    )
    scale = min(1.0, clip / norm)

    def leaf(path, w, g):
        g = g * scale
        spared = path[-1].key in ("bias", "scale")
        return w - lr * (g / (jnp.abs(g) + 1e-8) + (0.0 if spared else decay * w))

    return jax.tree_util.tree_map_with_path(leaf, p, grads), norm


def assert_close(a, b, rtol: float = 1e-4, atol: float = 1e-6) -> None:
    for (path, x), y in zip(
        jax.tree_util.tree_leaves_with_path(a), jax.tree.leaves(b), strict=True
    ):
        np.testing.assert_allclose(
            np.asarray(x), np.asarray(y), rtol=rtol, atol=atol, err_msg=str(path)
        )


@pytest.mark.parametrize(
    ("shape", "remat", "chunk"),
    [
        # Every sample in a row of its own, one microbatch.
        pytest.param({"rows": 16, "row_length": 20}, "none", 1024, marks=pytest.mark.slow),
        pytest.param({"rows": 1, "row_length": 48}, "full", 1024, marks=pytest.mark.slow),
        ({"rows": 3, "row_length": 32}, "dots", 7),
    ],
)
def test_gradient_equals_a_plain_one_however_the_steps_are_packed(shape, remat, chunk) -> None:
    samples = make_samples()
    options = {"kl_coef": 0.05, "entropy_coef": 0.02}
    expected_loss, expected = plain_gradient(**options)
    sgd = Optimizer(
        optax.identity(), lambda step: jnp.float32(1.0)
    )  # a step of length 1 shows the gradient
    batch = pack(samples, **shape)
    batch = dataclasses.replace(batch, reference=REFERENCE * batch.behaviour)
    update = make_update(
        functools.partial(forward, remat=remat), sgd, LossSettings(**CLIP, **options), chunk=chunk
    )
    state, metrics = update(fresh(sgd), batch)
    assert float(metrics["policy/loss"]) == pytest.approx(float(expected_loss), rel=1e-5)
    assert 0 < float(metrics["policy/clip_fraction"]) < 1
    got = jax.tree.map(lambda before, after: before - after, params(), state.params)
    assert_close(got, expected, rtol=2e-3, atol=2e-6)


def test_first_adamw_step_by_hand() -> None:
    samples = make_samples()
    _, grads = plain_gradient(0.0, 0.0)
    expected, norm = plain_adamw(params(), grads, lr=1e-2, clip=0.5)
    state, metrics = shared_update()(fresh(OPTIMIZER), pack(samples))
    assert float(metrics["policy/grad_norm"]) == pytest.approx(norm, rel=1e-4)
    assert norm > 0.5  # the clip does something
    assert float(metrics["policy/lr"]) == pytest.approx(1e-2)
    assert int(state.step) == 1
    # Where the gradient is tiny its sign decides; those entries are left to the gradient test.
    big = jax.tree.map(lambda g: np.abs(np.asarray(g)) > 1e-4, grads)
    assert sum(b.sum() for b in jax.tree.leaves(big)) > 1000
    for x, y, b in zip(*map(jax.tree.leaves, (state.params, expected, big)), strict=True):
        np.testing.assert_allclose(np.asarray(x)[b], np.asarray(y)[b], rtol=1e-3, atol=2e-5)


def test_ratio_is_one_on_policy_whether_recomputed_or_not() -> None:
    batch = pack(make_samples())
    own = make_logprobs(forward)(params(), batch)
    _, metrics = shared_update()(fresh(OPTIMIZER), dataclasses.replace(batch, behaviour=own))
    assert float(metrics["policy/ratio_max"]) == pytest.approx(1.0, abs=1e-5)
    assert float(metrics["policy/behaviour_mismatch"]) < 1e-5
    _, metrics = shared_update()(fresh(OPTIMIZER), dataclasses.replace(batch, proximal=own))
    assert float(metrics["policy/ratio_max"]) == pytest.approx(1.0, abs=1e-5)
    assert (
        float(metrics["policy/behaviour_mismatch"]) > 0.1
    )  # still the engine's against the learner's


def test_score_is_the_log_probability_of_each_response_token() -> None:
    samples = make_samples()
    batch = pack(samples)
    got = np.asarray(make_logprobs(forward, temperature=0.7, chunk=5)(params(), batch))
    behaviour = np.asarray(batch.behaviour)
    weight = np.asarray(batch.weight)
    expected = {}
    for s in samples:
        full = np.concatenate([s.prompt_tokens, s.response_tokens])
        n = len(s.prompt_tokens)
        values = plain_logprobs(params(), full, n, 0.7)
        expected |= dict(
            zip(s.logprobs.tolist(), values.tolist(), strict=True)
        )  # a token's fingerprint
    for b, w, g in zip(behaviour.ravel().tolist(), weight.ravel(), got.ravel(), strict=True):
        assert g == (pytest.approx(expected[b], abs=2e-4) if w else 0.0)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_step_that_is_not_finite_changes_nothing_and_is_counted(bad) -> None:
    update = shared_update()
    good = pack(make_samples())
    broken = dataclasses.replace(good, advantage=good.advantage.at[0, 0, 0].set(bad))
    state, _ = update(fresh(OPTIMIZER), good)
    before = jax.tree.map(np.array, [state.params, state.opt_state])
    for count in (1, 2):
        state, metrics = update(state, broken)
        assert float(metrics["policy/skipped"]) == 1
        assert (int(state.step), int(state.skipped)) == (1, count)
    for x, y in zip(*map(jax.tree.leaves, (before, [state.params, state.opt_state])), strict=True):
        np.testing.assert_array_equal(x, y)
    state, metrics = update(state, good)
    assert float(metrics["policy/skipped"]) == 0
    assert (int(state.step), int(state.skipped)) == (2, 2)


def test_minibatches_of_any_size_share_one_program() -> None:
    update = shared_update()
    state = fresh(OPTIMIZER)
    before = update._cache_size()
    samples = make_samples(30)
    for n, steps in ((30, 30), (11, 4), (23, 8)):
        batches = make_minibatches(
            samples[:n], steps=steps, row_length=40, rows=2, rng=np.random.default_rng(0)
        )
        assert len(batches) == -(-n // steps)
        for batch in batches:
            state, _ = update(state, jax.tree.map(jnp.asarray, batch))
    assert update._cache_size() <= max(before, 1)


def test_imitation_equals_cross_entropy_and_learns() -> None:
    samples = make_samples(6)
    optimizer = make_optimizer(lr=3e-3, weight_decay=0.0)
    update = make_sft_update(forward, optimizer, chunk=8)
    state = fresh(optimizer)
    batch = pack(samples)
    losses = []
    for _ in range(80):
        state, metrics = update(state, batch)
        losses.append(float(metrics["policy/loss"]))
    responses = [
        plain_logprobs(
            params(), np.concatenate([s.prompt_tokens, s.response_tokens]), len(s.prompt_tokens)
        )
        for s in samples
    ]
    assert losses[0] == pytest.approx(-float(np.concatenate(responses).mean()), rel=1e-5)
    assert losses[-1] < 0.1


def test_schedules_by_hand() -> None:
    def rates(name: str) -> list[float]:
        schedule = make_optimizer(lr=1.0, schedule=name, total=10, warmup_fraction=0.2).schedule
        return [float(schedule(jnp.int32(i))) for i in (0, 1, 2, 6, 10, 11)]

    np.testing.assert_allclose(rates("constant"), [0.5, 1, 1, 1, 1, 1], atol=1e-6)
    np.testing.assert_allclose(rates("linear"), [0.5, 1, 1, 0.5, 0, 0], atol=1e-6)
    np.testing.assert_allclose(rates("cosine"), [0.5, 1, 1, 0.5, 0, 0], atol=1e-6)


def test_one_program_updates_in_runs_of_any_length() -> None:
    programs = set()
    for total in (3, 30):
        optimizer = make_optimizer(lr=1e-2, schedule="linear", total=total)
        update = make_update(forward, optimizer, LossSettings(**CLIP))
        rate = scheduled_rates(optimizer, total)[1]
        lowered = update.lower(fresh(optimizer), pack(make_samples()), None, np.int32(1), rate)
        programs.add(lowered.as_text())
    assert len(programs) == 1


@pytest.mark.slow
def test_a_rate_that_is_an_input_gives_the_update_of_the_rate_that_the_program_computes() -> None:
    arguments = (pack(make_samples()), None, np.int32(1))
    optimizer = make_optimizer(lr=1e-2, schedule="linear", total=3)
    update = make_update(forward, optimizer, LossSettings(**CLIP))
    rate = scheduled_rates(optimizer, 3)[1]
    computed = update(fresh(optimizer), *arguments)
    given = update(fresh(optimizer), *arguments, rate)
    # Equal in every digit with the compiler's own flags; the biases of keys have no gradient but rounding.
    assert_close(given, computed, rtol=1e-5, atol=3e-5)


@pytest.mark.slow
def test_bfloat16_compute_keeps_float32_masters() -> None:
    optimizer = make_optimizer(lr=1e-6)
    update = make_update(
        functools.partial(forward, dtype=jnp.bfloat16), optimizer, LossSettings(**CLIP)
    )
    state, metrics = update(fresh(optimizer), pack(make_samples()))
    assert {x.dtype for x in jax.tree.leaves(state.params)} == {jnp.dtype("float32")}
    moved = [
        np.abs(np.asarray(a - b)).max()
        for a, b in zip(*map(jax.tree.leaves, (state.params, params())))
    ]
    assert 0 < max(moved) < 1e-5  # a step of 1e-6 would be lost in bfloat16
    assert math.isfinite(float(metrics["policy/loss"]))


def test_no_array_of_tokens_by_vocabulary() -> None:
    """With a vocabulary of 1009 no intermediate has that axis beside more tokens than a chunk."""
    config = dataclasses.replace(CONFIG, vocab_size=1009)

    def wide(p, _, tokens, positions, segment_ids, images):
        hidden = decoder.hidden_states(
            config, p, tokens, positions, segment_ids, decoder.Execution(remat="full")
        )
        return hidden, decoder.output_embedding(config, p)

    optimizer = make_optimizer(lr=1e-3)
    state = init_state(decoder.init_params(config, jax.random.key(0)), optimizer)
    batch = pack(make_samples(40), row_length=64, rows=8)
    update = make_update(wide, optimizer, LossSettings(**CLIP, entropy_coef=0.1), chunk=32)
    jaxpr = jax.make_jaxpr(update)(state, batch)
    sizes = [
        v.aval.size
        for eqn in _equations(jaxpr.jaxpr)
        for v in eqn.outvars
        if 1009 in getattr(v.aval, "shape", ())
    ]
    assert 1009 * 32 in sizes
    assert max(sizes) == 1009 * 32  # the embedding, and a chunk of logits, are of equal size


def _equations(jaxpr):
    for eqn in jaxpr.eqns:
        yield eqn
        for value in eqn.params.values():
            for inner in value if isinstance(value, (tuple, list)) else [value]:
                if hasattr(inner, "jaxpr"):
                    yield from _equations(inner.jaxpr)
                elif hasattr(inner, "eqns"):
                    yield from _equations(inner)


def test_a_microbatch_has_no_gradients_of_its_own_beside_the_sum() -> None:
    shape = decoder.DecoderConfig(97, 128, 512, 8, 4, 2, 32)

    def forward(params, _, tokens, positions, segment_ids, images):
        hidden = decoder.hidden_states(
            shape, params, tokens, positions, segment_ids, decoder.Execution(remat="full")
        )
        return hidden, decoder.output_embedding(shape, params)

    plain = Optimizer(
        optax.identity(), optax.constant_schedule(1e-2)
    )  # has no temporaries of its own
    state = jax.eval_shape(lambda: init_state(decoder.init_params(shape, jax.random.key(0)), plain))
    batch = pack(make_samples(), rows=1)
    assert batch.microbatches > 1
    memory = (
        make_update(forward, plain, LossSettings(**CLIP))
        .lower(state, batch)
        .compile()
        .memory_analysis()
    )
    assert memory.temp_size_in_bytes < 1.6 * decoder.param_count(shape) * 4


@pytest.mark.slow
def test_a_first_moment_of_two_bytes_changes_updates_by_its_rounding_alone() -> None:
    batch = pack(make_samples())
    found = []
    optimizers = {
        "float32": OPTIMIZER,
        "bfloat16": make_optimizer(
            lr=1e-2, weight_decay=0.01, grad_clip=0.5, moment_dtype="bfloat16"
        ),
    }
    for dtype, optimizer in optimizers.items():
        state = fresh(optimizer)
        update = (
            shared_update()
            if optimizer is OPTIMIZER
            else make_update(forward, optimizer, LossSettings(**CLIP))
        )
        for _ in range(4):
            state, _ = update(state, batch)
        kinds = {leaf.dtype.name for leaf in jax.tree.leaves(state.opt_state) if leaf.ndim}
        assert kinds == {"float32", dtype}
        found.append(jax.tree.map(jnp.subtract, state.params, params()))
    error = optax.tree.norm(jax.tree.map(jnp.subtract, *found)) / optax.tree.norm(found[0])
    assert 0 < error < 2**-8


def test_an_update_in_pieces_equals_one_call_and_can_be_dropped() -> None:
    batch = pack(make_samples())
    whole, expected = shared_update()(fresh(OPTIMIZER), batch)
    update = make_update(forward, OPTIMIZER, LossSettings(**CLIP), in_pieces=True)
    done: list[int] = []
    state, metrics = update(fresh(OPTIMIZER), batch, between=lambda result, m: done.append(m))
    count = int(batch.microbatches)
    assert count > 1
    assert done == [m + 1 for m in range(count)]
    for name, value in expected.items():
        assert_close(metrics[name], value)
    # Of a bias whose gradient is 0 but for rounding, Adam makes a step.
    assert_close(state.params, whole.params, atol=2e-5)
    assert int(state.step) == 1

    def stop(result, m) -> None:
        raise RuntimeError(m)

    # Neither donated nor changed: the next update begins from the same parameters.
    with pytest.raises(RuntimeError, match=r"^1$"):
        update(state, batch, between=stop)
    assert_close(state.params, whole.params, atol=2e-5)
    update(state, batch)
