"""The train step: a pure, jitted, donated function (state, minibatch) -> (state, metrics).

Gradients of the M microbatches of a minibatch are summed in float32 inside one jitted call, in place; M is a run-time
value, so minibatches of any size share one compiled program. Every loss is a sum over the minibatch that is divided
once, hence the result does not depend on how the steps were packed.

A loss or gradient that is not finite leaves parameters and optimizer as they were; it is counted in the state.

Departure from the published settings: weight decay spares leaves named `bias` and `scale` (norms), as is usual for
language models.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from gigpo_jax.rl.logprobs import token_logprobs
from gigpo_jax.rl.losses import LossSettings, LossSums, imitation_loss, loss_total, policy_loss
from gigpo_jax.rl.ratios import MASKS
from gigpo_jax.rl.types import StepBatch

Params = Any
Metrics = dict[str, jax.Array]
# (trained parameters, frozen ones or None, tokens [B, T], positions [B, T], segment_ids [B, T], images or None)
# -> (hidden states [B, T, D], output embedding [V, D])
Forward = Callable[[Params, Params, jax.Array, jax.Array, jax.Array, Any], tuple[jax.Array, jax.Array]]
# (log-probabilities [B, C] f32, entropy [B, C] f32, microbatch without the M axis, *, iteration [] i32)
# -> sums over its response tokens
Loss = Callable[..., LossSums]
# (trained parameters, frozen ones or None, microbatch without the M axis, iteration [] i32) -> its sums, with a `loss`
Measure = Callable[[Params, Params, StepBatch, jax.Array], Any]
# (state, minibatch, frozen parameters = None, iteration = None)
Update = Callable[..., tuple["TrainState", Metrics]]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TrainState:
    """What an update changes.

    Attributes:
      params: the parameters that are trained, a pytree: the policy's, or those of its adapter.
      opt_state: of the optimizer, a pytree; moments are float32, the first as `make_optimizer` says.
      step: [] i32, updates applied.
      skipped: [] i32, updates skipped because something was not finite.
    """

    params: Any
    opt_state: Any
    step: Any
    skipped: Any


class Optimizer(NamedTuple):
    """An optax transformation without its learning rate, and the learning rate of each iteration or update."""

    transform: optax.GradientTransformation
    schedule: optax.Schedule


SCHEDULES = ("constant", "linear", "cosine")


def make_optimizer(
    *,
    lr: float,
    schedule: str = "constant",
    total: int = 1,
    warmup_fraction: float = 0.0,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.01,
    grad_clip: float = 1.0,
    moment_dtype: Any = jnp.float32,
) -> Optimizer:
    """AdamW behind a global-norm clip, with a linear warm-up and a schedule.

    The parameters, `total` left out, are the keys of `config.optim`.

    Args:
      lr: the peak learning rate.
      schedule: after the warm-up "constant", or "linear" or "cosine" down to 0 after the last.
      total: iterations of the whole run, or its updates if the schedule counts these.
      warmup_fraction: fraction of them with a rising rate; the first one already moves.
      b1: decay of the first moment.
      b2: decay of the second moment.
      eps: added to the root of the second moment.
      weight_decay: decoupled; not applied to leaves named `bias` or `scale`.
      grad_clip: largest global gradient norm; larger ones are scaled down.
      moment_dtype: of the stored first moment. The second is float32: a step changes it by 1 - b2 of its size, which
        bfloat16 rounds away.

    Returns:
      The transformation and its schedule.
    """
    if schedule not in SCHEDULES:
        raise ValueError(f"schedule={schedule!r}: choose one of {', '.join(SCHEDULES)}")
    warmup = round(warmup_fraction * total)
    rising = optax.linear_schedule(lr / max(warmup, 1), lr, max(warmup - 1, 1))
    rest = max(total - warmup, 1)
    after = {
        "constant": optax.constant_schedule(lr),
        "linear": optax.linear_schedule(lr, 0.0, rest),
        "cosine": optax.cosine_decay_schedule(lr, rest),
    }
    transform = optax.chain(
        optax.clip_by_global_norm(grad_clip),
        optax.scale_by_adam(b1, b2, eps, mu_dtype=moment_dtype),
        optax.add_decayed_weights(weight_decay, _decayed),
    )
    return Optimizer(transform, optax.join_schedules([rising, after[schedule]], [warmup]))


def init_state(params: Params, optimizer: Optimizer) -> TrainState:
    """A fresh state; the parameters are taken over, not copied (the update donates them)."""
    # Moments are float32 whatever the parameters are: 1e-6 steps vanish in bfloat16.
    opt_state = optimizer.transform.init(jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), params))
    zero = jnp.zeros((), jnp.int32)
    return TrainState(params, opt_state, zero, zero + 0)


def response_logprobs(
    forward: Callable[..., tuple[jax.Array, jax.Array]], batch: StepBatch, *, chunk: int, temperature: float = 1.0
) -> tuple[jax.Array, jax.Array]:
    """Log-probability and entropy at the response tokens of one microbatch.

    Hidden states are gathered at the response positions first, so the vocabulary product, a large part of the work,
    runs on C positions of a row instead of T.

    Args:
      forward: `Forward` with its parameters bound.
      batch: fields without the M axis.
      chunk: tokens whose logits exist at a time, at most.
      temperature: logits are divided by it.

    Returns:
      Two [B, C] f32 arrays, nats; padding holds values without meaning.
    """
    hidden, embedding = forward(batch.tokens, batch.positions, batch.segment_ids, batch.images)
    hidden = jnp.take_along_axis(hidden, batch.response_index[..., None], axis=1)
    rows, capacity, width = hidden.shape
    # Equal pieces of whole columns: nothing is padded, and a piece has tokens of every row, hence of every device.
    wanted = -(-rows * capacity // chunk)
    pieces = next((n for n in range(wanted, capacity) if capacity % n == 0), capacity)
    logprob, entropy = token_logprobs(
        hidden.reshape(-1, width),
        embedding,
        batch.targets.reshape(-1),
        chunk=rows * capacity // pieces,
        temperature=temperature,
    )
    return logprob.reshape(rows, capacity), entropy.reshape(rows, capacity)


def make_update(
    forward: Forward,
    optimizer: Optimizer,
    settings: LossSettings,
    *,
    chunk: int = 1024,
    temperature: float = 1.0,
    state_shardings: TrainState | None = None,
) -> Update:
    """Builds the reinforcement learning step, with the loss `policy_loss`.

    Args:
      forward: the model.
      optimizer: as from `make_optimizer`.
      settings: of the loss.
      chunk: tokens whose logits exist at a time.
      temperature: of the distribution that the responses were sampled from.
      state_shardings: where each leaf of the state lives; gradients are summed in the parameters' shardings.

    Returns:
      A jitted function (state, minibatch, frozen=None, iteration=None) -> (state, metrics) that takes over (donates)
      the state; frozen parameters are only read. The learning rate, and p of a Hölder mean, are those of the
      iteration, [] i32 from 0; None: of the number of updates so far. The metrics are [] f32:
      `policy/{loss,ratio_max,grad_norm,lr,skipped}`, means over response tokens,
      `policy/{kl,entropy,clip_fraction,dual_clip_fraction,behaviour_mismatch}`, and `policy/masked_fraction`, of the
      tokens, if the correction leaves responses out; all others are then of those that are left.
    """
    how: dict[str, Any] = {"chunk": chunk, "temperature": temperature, "state_shardings": state_shardings}
    loss, total = partial(policy_loss, settings=settings), partial(loss_total, settings=settings)
    return _make(forward, optimizer, loss, total, masks=settings.correction in MASKS, **how)


def make_sft_update(
    forward: Forward, optimizer: Optimizer, *, chunk: int = 1024, state_shardings: TrainState | None = None
) -> Update:
    """Builds the supervised step, cross-entropy of the response tokens; arguments and result as for `make_update`."""
    how: dict[str, Any] = {"chunk": chunk, "temperature": 1.0, "state_shardings": state_shardings}

    def loss(*sums: Any, iteration: jax.Array) -> LossSums:
        del iteration
        return imitation_loss(*sums)

    return _make(forward, optimizer, loss, loss_total, masks=False, **how)


def make_logprobs(forward: Forward, *, chunk: int = 1024, temperature: float = 1.0) -> Callable[..., jax.Array]:
    """Builds a jitted (params, minibatch, frozen=None) -> log-probabilities [M, B, C] f32 of the response tokens.

    `dataclasses.replace(batch, reference=logprobs(reference, batch))` gives a minibatch its reference policy, and
    `replace(batch, proximal=logprobs(params, batch))` recomputes the old log-probabilities. Arguments as for
    `make_update`; padding is 0.
    """

    def logprobs(params: Params, batch: StepBatch, frozen: Params = None) -> jax.Array:
        bound = partial(forward, params, frozen)

        def body(m: jax.Array, out: jax.Array) -> jax.Array:
            logprob, _ = response_logprobs(bound, microbatch(batch, m), chunk=chunk, temperature=temperature)
            return jax.lax.dynamic_update_index_in_dim(out, logprob, m, 0)

        out = jax.lax.fori_loop(0, batch.microbatches, body, jnp.zeros_like(batch.behaviour))
        return jnp.where(batch.weight > 0, out, 0.0)

    return jax.jit(logprobs)


def microbatch(batch: StepBatch, m: jax.Array | int) -> StepBatch:
    """Microbatch m of a minibatch: the same fields without the M axis."""
    return jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, m, keepdims=False) if x.ndim else x, batch)


def _make(
    forward: Forward,
    optimizer: Optimizer,
    loss: Loss,
    total: Callable[[StepBatch], jax.Array],
    *,
    chunk: int,
    temperature: float,
    state_shardings: TrainState | None,
    masks: bool,
) -> Update:
    def sums(params: Params, frozen: Params, micro: StepBatch, iteration: jax.Array) -> LossSums:
        bound = partial(forward, params, frozen)
        return loss(*response_logprobs(bound, micro, chunk=chunk, temperature=temperature), micro, iteration=iteration)

    def metrics(sums: LossSums, batch: StepBatch) -> Metrics:
        left_out = 1.0 - sums.tokens / jnp.maximum(jnp.sum(batch.weight), 1.0)
        return sums.means() | ({"policy/masked_fraction": left_out} if masks else {})

    how: dict[str, Any] = {"name": "policy", "state_shardings": state_shardings}
    return make_step(optimizer, sums, LossSums.zero, total, metrics, **how)


def make_step(
    optimizer: Optimizer,
    measure: Measure,
    zero: Callable[[], Any],
    total: Callable[[StepBatch], jax.Array],
    metrics: Callable[[Any, StepBatch], Metrics],
    *,
    name: str,
    state_shardings: TrainState | None,
) -> Update:
    """Builds a train step; `make_update` says what it takes and gives.

    Args:
      optimizer: as from `make_optimizer`.
      measure: the sums of a microbatch; their `loss` is differentiated, and `a + b` joins them.
      zero: the sums of nothing.
      total: minibatch -> the divisor of the summed loss.
      metrics: (sums of a minibatch, minibatch) -> metrics beside `name`/{loss,grad_norm,lr,skipped}.
      name: of these.
      state_shardings: see `make_update`.
    """

    def place(tree: Params) -> Params:
        return tree if state_shardings is None else jax.lax.with_sharding_constraint(tree, state_shardings.params)

    def update(
        state: TrainState, batch: StepBatch, frozen: Params = None, iteration: jax.Array | None = None
    ) -> tuple[TrainState, Metrics]:
        denominator, now = total(batch), state.step if iteration is None else iteration

        def objective(params: Params, m: jax.Array) -> tuple[jax.Array, Any]:
            sums = measure(params, frozen, microbatch(batch, m), now)
            return sums.loss / denominator, sums

        sums, grads = _summed(objective, state.params, place, batch.microbatches, zero())
        grad_norm = optax.tree.norm(grads)
        rate = jnp.asarray(optimizer.schedule(now), jnp.float32)
        finite = jnp.isfinite(sums.loss) & jnp.isfinite(grad_norm)
        record = metrics(sums, batch) | {
            f"{name}/loss": sums.loss / denominator,
            f"{name}/grad_norm": grad_norm,
            f"{name}/lr": rate,
            f"{name}/skipped": 1.0 - finite.astype(jnp.float32),
        }
        return _apply(optimizer, state, grads, rate, finite), record

    shardings = None if state_shardings is None else (state_shardings, None)
    return jax.jit(update, donate_argnums=0, out_shardings=shardings)


def _summed(
    objective: Callable[[Params, jax.Array], tuple[jax.Array, Any]],
    params: Params,
    place: Callable[[Params], Params],
    microbatches: int,
    sums: Any,
) -> tuple[Any, Params]:
    """The sums of all microbatches added to `sums`, and the gradients (float32), summed where they lie.

    Args:
      objective: (parameters, m) -> loss and sums of microbatch m.
      params: the parameters.
      place: puts a tree like them where its leaves live.
      microbatches: how many.
      sums: the sums of nothing.
    """
    totals = jax.tree.map(jax.new_ref, place(jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), params)))
    in_place = jax.tree_util.tree_map_with_path(
        lambda path, total: total if _stacked(path) else jax.ad.GradValue(),  # type: ignore[attr-defined]
        totals,
    )
    others = [total for path, total in jax.tree_util.tree_leaves_with_path(totals) if not _stacked(path)]

    def body(m: jax.Array, sums: Any) -> Any:
        loss, back, new = jax.vjp(lambda params: objective(params, m), params, has_aux=True)
        (grads,) = back.with_refs(in_place)(jnp.ones_like(loss))  # type: ignore[attr-defined]
        for total, grad in zip(others, jax.tree.leaves(grads), strict=True):
            total[...] += grad.astype(jnp.float32)
        return sums + new

    sums = jax.lax.fori_loop(0, microbatches, body, sums)
    return sums, place(jax.tree.map(jax.freeze, totals))


def shard_state(optimizer: Optimizer, params: Params, param_shardings: Params, whole: Any) -> TrainState:
    """Where each leaf of a `TrainState` lives: optimizer moments beside their parameters.

    Args:
      optimizer: as from `make_optimizer`.
      params: the parameters, or their shapes.
      param_shardings: a tree of shardings like them.
      whole: the sharding of everything else.
    """
    state = jax.eval_shape(lambda p: init_state(p, optimizer), params)
    opt_state = optax.tree.map_params(
        optimizer.transform,
        lambda _, sharding: sharding,
        state.opt_state,
        param_shardings,
        transform_non_params=lambda _: whole,
    )
    return TrainState(param_shardings, opt_state, whole, whole)


def _apply(optimizer: Optimizer, state: TrainState, grads: Params, rate: jax.Array, finite: jax.Array) -> TrainState:
    """One optimizer step if everything is finite, else the old parameters and optimizer state."""
    # Not optax.apply_if_finite: its cond changes the last bits of the result and adds a pass over the gradients.
    updates, opt_state = optimizer.transform.update(grads, state.opt_state, state.params)
    params = optax.apply_updates(state.params, optax.tree.scale(-rate, updates))

    def keep(new: jax.Array, old: jax.Array) -> jax.Array:
        return jnp.where(finite, new, old)

    return TrainState(
        params=jax.tree.map(keep, params, state.params),
        opt_state=jax.tree.map(keep, opt_state, state.opt_state),
        step=state.step + finite,
        skipped=state.skipped + ~finite,
    )


def _stacked(path: tuple) -> bool:
    """Whether a leaf is of layers that are scanned: the backward pass adds to its sum in place, a layer at a time.

    So a microbatch has no gradient tree of its own. Other leaves are used in several places of the model; their parts
    are added up first. Pairs of an adapter are small, and scaled before the scan: jax 0.10 confuses inputs of a scan
    whose gradients are values with those that have sums to add to.
    """
    names = [str(getattr(key, "key", "")) for key in path]
    return "layers" in names and not names[-1].startswith("lora_")


def _decayed(params: Params) -> Any:
    """True for leaves that weight decay applies to."""

    def matrix(path: tuple, _: jax.Array) -> bool:
        return not path or getattr(path[-1], "key", None) not in ("bias", "scale")

    return jax.tree_util.tree_map_with_path(matrix, params)
