"""The train step: a pure, jitted, donated function (state, minibatch) -> (state, metrics).

Gradients of the M microbatches of a minibatch are summed in float32 inside one jitted call, in
place; M is a run-time value, so minibatches of any size share one compiled program. Every loss is a
sum over the minibatch that is divided once, hence the result does not depend on how the steps were
packed.

A loss or gradient that is not finite leaves parameters and optimizer as they were; it is counted in
the state.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from gigpo_jax.rl.logprobs import OutputEmbedding, token_logprobs
from gigpo_jax.rl.losses import (
    LossSettings,
    LossSums,
    imitation_loss,
    loss_denominator,
    policy_loss,
)
from gigpo_jax.rl.optimizer import Optimizer
from gigpo_jax.rl.ratios import MASKS
from gigpo_jax.rl.types import StepBatch

Params = Any
Metrics = dict[str, jax.Array]
# (trained parameters, frozen ones or None, tokens [B, T], positions [B, T], segment_ids [B, T],
# images or None, and routes [B, T, R] if a minibatch has them) -> (hidden states [B, T, D], output
# embedding [V, D])
Forward = Callable[..., tuple[jax.Array, OutputEmbedding]]
# (log-probabilities [B, C] f32, entropy [B, C] f32, microbatch without the M axis, *, iteration []
# i32) -> sums over its response tokens
Loss = Callable[..., LossSums]
# (trained parameters, frozen ones or None, microbatch without the M axis, iteration [] i32) -> sums
# of the microbatch, with a `loss`
Measure = Callable[[Params, Params, StepBatch, jax.Array], Any]
# (state, minibatch, frozen parameters = None, iteration = None, rate = None)
Update = Callable[..., tuple["TrainState", Metrics]]
# (result of a device call, microbatches done, all microbatches) -> None
Between = Callable[[Any, int, int], None]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TrainState:
    """State of training that an update changes.

    Attributes:
      params: Trained parameters of the policy or of its adapter, a pytree.
      opt_state: State of the optimizer, a pytree. Moments are float32, the first one of
        `moment_dtype`.
      step: [] i32, number of applied updates.
      skipped: [] i32, number of updates skipped because a number was not finite.
    """

    params: Any
    opt_state: Any
    step: Any
    skipped: Any


def init_state(params: Params, optimizer: Optimizer) -> TrainState:
    """Builds the state of a new run without a copy: its first update donates the parameters."""
    # Moments are float32 whatever the parameters are: 1e-6 steps vanish in bfloat16.
    opt_state = optimizer.transform.init(
        jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), params)
    )
    zero = jnp.zeros((), jnp.int32)
    # Two arrays: an update donates both counters, and one buffer cannot be donated twice.
    return TrainState(params, opt_state, zero, zero + 0)


def response_logprobs(
    forward: Forward,
    batch: StepBatch,
    *,
    chunk: int,
    temperature: float = 1.0,
) -> tuple[jax.Array, jax.Array]:
    """Computes log-probability and entropy of a microbatch's response tokens.

    Hidden states are gathered at the response positions first. So the vocabulary product, a large
    part of the work, runs on C positions of a row instead of T.

    Args:
      forward: `Forward` with its parameters bound.
      batch: Microbatch without the M axis.
      chunk: Largest number of tokens whose logits exist at a time.
      temperature: Divisor of the logits.

    Returns:
      Two [B, C] f32 arrays, nats; padding holds values without meaning.
    """
    inputs = [batch.tokens, batch.positions, batch.segment_ids, batch.images]
    if batch.routes is not None:
        inputs.append(batch.routes)
    hidden, embedding = forward(*inputs)
    hidden = jnp.take_along_axis(hidden, batch.response_index[..., None], axis=1)
    rows, capacity, width = hidden.shape
    # Equal pieces of whole columns: nothing is padded, and a piece has tokens of every row, hence
    # of every device. A piece that held one device's rows alone would leave the others idle.
    min_pieces = -(-rows * capacity // chunk)
    pieces = next((n for n in range(min_pieces, capacity) if capacity % n == 0), capacity)
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
    in_pieces: bool = False,
) -> Update:
    """Builds the reinforcement learning step, with the loss `policy_loss`.

    Args:
      forward: Model.
      optimizer: Optimizer of `make_optimizer`.
      settings: Settings of the loss.
      chunk: Number of tokens whose logits exist at a time.
      temperature: Temperature of the distribution that the responses were sampled from.
      state_shardings: Sharding of each leaf of the state; gradients are summed in the parameters'
        shardings.
      in_pieces: Whether the result is a `PiecewiseUpdate`, equal up to rounding.

    Returns:
      A jitted function (state, minibatch, frozen=None, iteration=None, rate=None) -> (state,
      metrics). It donates the state and only reads frozen parameters. Learning rate and p of a
      Hölder mean follow from the iteration, [] i32 from 0; with None, from the number of
      updates so far. A `rate`, [] f32, replaces the learning rate of the schedule: the program then
      does not depend on the length of the run.

      The metrics are [] f32: `policy/{loss,ratio_max,grad_norm,lr,skipped}`; the means over
      response tokens `policy/{kl,entropy,clip_fraction,dual_clip_fraction,behaviour_mismatch}`;
      and, if the correction leaves responses out, their share of tokens `policy/masked_fraction`.
      All other metrics are then of the remaining tokens.
    """
    return _make_policy_update(
        forward,
        optimizer,
        partial(policy_loss, settings=settings),
        partial(loss_denominator, settings=settings),
        chunk=chunk,
        temperature=temperature,
        state_shardings=state_shardings,
        masks=settings.correction in MASKS,
        in_pieces=in_pieces,
    )


def make_sft_update(
    forward: Forward,
    optimizer: Optimizer,
    *,
    chunk: int = 1024,
    state_shardings: TrainState | None = None,
    in_pieces: bool = False,
) -> Update:
    """Builds the supervised step, whose loss is the cross-entropy of the response tokens.

    Arguments and result are as for `make_update`.
    """

    def loss(*sums: Any, iteration: jax.Array) -> LossSums:
        del iteration
        return imitation_loss(*sums)

    return _make_policy_update(
        forward,
        optimizer,
        loss,
        loss_denominator,
        chunk=chunk,
        temperature=1.0,
        state_shardings=state_shardings,
        masks=False,
        in_pieces=in_pieces,
    )


def make_logprobs(
    forward: Forward, *, chunk: int = 1024, temperature: float = 1.0
) -> Callable[..., jax.Array]:
    """Builds a jitted function for the log-probabilities of response tokens.

    The function takes (params, minibatch, frozen=None) and returns [M, B, C] f32.
    `dataclasses.replace(batch, reference=logprobs(reference, batch))` gives a minibatch its
    reference policy, and `replace(batch, proximal=logprobs(params, batch))` recomputes the old
    log-probabilities. Arguments are as for `make_update`; padding is 0.
    """

    def logprobs(params: Params, batch: StepBatch, frozen: Params = None) -> jax.Array:
        bound = partial(forward, params, frozen)

        def body(m: jax.Array, out: jax.Array) -> jax.Array:
            logprob, _ = response_logprobs(
                bound, select_microbatch(batch, m), chunk=chunk, temperature=temperature
            )
            return jax.lax.dynamic_update_index_in_dim(out, logprob, m, 0)

        # The number of microbatches is data: one program serves minibatches of any length.
        out = jax.lax.fori_loop(0, batch.microbatches, body, jnp.zeros_like(batch.behaviour))
        # Padding has the score of a token at position 0, which means nothing.
        return jnp.where(batch.weight > 0, out, 0.0)

    return jax.jit(logprobs)


def select_microbatch(batch: StepBatch, m: jax.Array | int) -> StepBatch:
    """Selects microbatch m of a minibatch: the same fields without the M axis."""
    # The number of microbatches is a scalar: it belongs to all of them and has no M axis.
    return jax.tree.map(
        lambda x: jax.lax.dynamic_index_in_dim(x, m, keepdims=False) if x.ndim else x, batch
    )


def _make_policy_update(
    forward: Forward,
    optimizer: Optimizer,
    loss: Loss,
    total: Callable[[StepBatch], jax.Array],
    *,
    chunk: int,
    temperature: float,
    state_shardings: TrainState | None,
    masks: bool,
    in_pieces: bool,
) -> Update:
    def sums(params: Params, frozen: Params, micro: StepBatch, iteration: jax.Array) -> LossSums:
        bound = partial(forward, params, frozen)
        return loss(
            *response_logprobs(bound, micro, chunk=chunk, temperature=temperature),
            micro,
            iteration=iteration,
        )

    def metrics(sums: LossSums, batch: StepBatch) -> Metrics:
        means = sums.means()
        if masks:
            remaining = sums.tokens / jnp.maximum(jnp.sum(batch.weight), 1.0)
            means["policy/masked_fraction"] = 1.0 - remaining
        return means

    return make_step(
        optimizer,
        sums,
        LossSums.zero,
        total,
        metrics,
        name="policy",
        state_shardings=state_shardings,
        in_pieces=in_pieces,
    )


class PiecewiseUpdate:
    """An update of several device calls, one for each microbatch.

    The host can show progress between the calls. It can also stop between them, because only the
    last call changes the state.
    """

    def __init__(
        self,
        start: Callable[[Params], Any],
        add: Callable[..., Any],
        apply: Callable[..., tuple[TrainState, Metrics]],
    ) -> None:
        """Takes the jitted programs.

        Args:
          start: Function from parameters to sums and gradients of no tokens.
          add: Function (parameters, minibatch, frozen parameters, iteration, m, sums and gradients)
            -> those with microbatch m; it donates the last argument.
          apply: Function (state, minibatch, sums and gradients, iteration, rate) -> (state,
            metrics); it donates the state.
        """
        self._start = start
        self._add = add
        self._apply = apply

    def __call__(
        self,
        state: TrainState,
        batch: StepBatch,
        frozen: Params = None,
        iteration: jax.Array | None = None,
        rate: jax.Array | None = None,
        *,
        between: Between = lambda result, done, total: None,
    ) -> tuple[TrainState, Metrics]:
        """Makes an update as described in `make_update`, and calls `between` after each microbatch.

        If `between` raises, the state stays as it was.
        """
        count = state.step + 0 if iteration is None else iteration
        totals = self._start(state.params)
        microbatches = int(batch.microbatches)
        for m in range(microbatches):
            totals = self._add(state.params, batch, frozen, count, np.int32(m), totals)
            between(totals[0], m + 1, microbatches)
        return self._apply(state, batch, totals, count, rate)

    def _cache_size(self) -> int:
        """Number of compiled programs, as jitted functions have it."""
        programs: tuple[Any, ...] = (self._start, self._add, self._apply)
        return sum(program._cache_size() for program in programs)


def make_step(
    optimizer: Optimizer,
    measure: Measure,
    zero: Callable[[], Any],
    total: Callable[[StepBatch], jax.Array],
    metrics: Callable[[Any, StepBatch], Metrics],
    *,
    name: str,
    state_shardings: TrainState | None,
    in_pieces: bool = False,
) -> Update:
    """Builds a train step, a function with the signature that `make_update` describes.

    Args:
      optimizer: Optimizer of `make_optimizer`.
      measure: Function for the sums of a microbatch; their `loss` is differentiated, and `a + b`
        joins them.
      zero: Function for the sums over no tokens.
      total: Function from a minibatch to the divisor of the summed loss.
      metrics: Function (sums of a minibatch, minibatch) -> metrics beside
        `name`/{loss,grad_norm,lr,skipped}.
      name: Prefix of these metrics.
      state_shardings: Sharding of each leaf of the state.
      in_pieces: Whether the result is a `PiecewiseUpdate`.
    """

    def place(tree: Params) -> Params:
        if state_shardings is None:
            return tree
        return jax.lax.with_sharding_constraint(tree, state_shardings.params)

    def start(params: Params) -> tuple[Any, Params]:
        zeros = jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), params)
        return zero(), place(zeros)

    def add(
        params: Params,
        batch: StepBatch,
        frozen: Params,
        count: jax.Array,
        span: tuple[Any, Any],
        totals: tuple[Any, Params],
    ) -> tuple[Any, Params]:
        # Of the whole minibatch, before any microbatch: the gradient then equals that of one large
        # batch, however steps are spread over microbatches and devices.
        denominator = total(batch)

        def objective(params: Params, m: jax.Array) -> tuple[jax.Array, Any]:
            sums = measure(params, frozen, select_microbatch(batch, m), count)
            # Divided before the gradient is taken: gradients of microbatches add up to
            # that of the mean.
            return sums.loss / denominator, sums

        return _accumulate_gradients(objective, params, place, span, totals)

    def apply(
        state: TrainState,
        batch: StepBatch,
        totals: tuple[Any, Params],
        count: jax.Array,
        rate: jax.Array | None,
    ) -> tuple[TrainState, Metrics]:
        sums, grads = totals
        # Before the clip: the metric shows what the clip had to scale down.
        grad_norm = optax.tree.norm(grads)
        if rate is None:
            rate = jnp.asarray(optimizer.schedule(count), jnp.float32)
        # A finite loss can have gradients that are not: both decide whether the step is applied.
        finite = jnp.isfinite(sums.loss) & jnp.isfinite(grad_norm)
        record = metrics(sums, batch) | {
            f"{name}/loss": sums.loss / total(batch),
            f"{name}/grad_norm": grad_norm,
            f"{name}/lr": rate,
            f"{name}/skipped": 1.0 - finite.astype(jnp.float32),
        }
        return _apply_gradients(optimizer, state, grads, rate, finite), record

    def update(
        state: TrainState,
        batch: StepBatch,
        frozen: Params = None,
        iteration: jax.Array | None = None,
        rate: jax.Array | None = None,
    ) -> tuple[TrainState, Metrics]:
        count = state.step if iteration is None else iteration
        span = (0, batch.microbatches)
        totals = add(state.params, batch, frozen, count, span, start(state.params))
        return apply(state, batch, totals, count, rate)

    # Without shardings of the results, XLA may choose others than those of the donated state; the
    # next call would then compile again and could not reuse the memory.
    shardings = None if state_shardings is None else (state_shardings, None)
    if not in_pieces:
        return jax.jit(update, donate_argnums=0, out_shardings=shardings)

    def add_one(
        params: Params,
        batch: StepBatch,
        frozen: Params,
        count: jax.Array,
        m: jax.Array,
        totals: tuple[Any, Params],
    ) -> tuple[Any, Params]:
        return add(params, batch, frozen, count, (m, m + 1), totals)

    total_shardings = None if state_shardings is None else (None, state_shardings.params)
    return PiecewiseUpdate(
        jax.jit(start, out_shardings=total_shardings),
        jax.jit(add_one, donate_argnums=5, out_shardings=total_shardings),
        jax.jit(apply, donate_argnums=0, out_shardings=shardings),
    )


def _accumulate_gradients(
    objective: Callable[[Params, jax.Array], tuple[jax.Array, Any]],
    params: Params,
    place: Callable[[Params], Params],
    span: tuple[Any, Any],
    totals: tuple[Any, Params],
) -> tuple[Any, Params]:
    """Sums losses and gradients over microbatches, gradients in place.

    Args:
      objective: Function (parameters, m) -> loss and sums of microbatch m.
      params: Parameters.
      place: Function that puts a tree of gradients into the shardings of the parameters.
      span: The first microbatch, and the index behind the last one.
      totals: Sums and float32 gradients of earlier microbatches.

    Returns:
      Sums and gradients with these microbatches.
    """
    sums, gradients = totals
    # A reference for each leaf: the backward pass adds to those of scanned layers itself, so no
    # second gradient tree is ever held. Other gradients come as values and are added here.
    references = jax.tree.map(jax.new_ref, gradients)

    # A model with layers of two kinds scans slices of its stacks: jax 0.10 cannot add to their
    # gradients in place.
    is_sliced = isinstance(params, dict) and "dense_layers" in params

    def adds_in_place(path: tuple) -> bool:
        return _is_scanned(path) and not is_sliced

    def place_for_gradient(path: tuple, reference: Any) -> Any:
        if adds_in_place(path):
            return reference
        return jax.ad.GradValue()  # type: ignore[attr-defined]

    in_place = jax.tree_util.tree_map_with_path(place_for_gradient, references)
    value_references = [
        reference
        for path, reference in jax.tree_util.tree_leaves_with_path(references)
        if not adds_in_place(path)
    ]

    def body(m: jax.Array, sums: Any) -> Any:
        loss, backward, new_sums = jax.vjp(
            lambda params: objective(params, m), params, has_aux=True
        )
        (grads,) = backward.with_refs(in_place)(jnp.ones_like(loss))  # type: ignore[attr-defined]
        for reference, grad in zip(value_references, jax.tree.leaves(grads), strict=True):
            # In float32: sums of many bfloat16 gradients would lose the small ones.
            reference[...] += grad.astype(jnp.float32)
        return sums + new_sums

    sums = jax.lax.fori_loop(*span, body, sums)
    return sums, place(jax.tree.map(jax.freeze, references))


def shard_state(
    optimizer: Optimizer, params: Params, param_shardings: Params, replicated: Any
) -> TrainState:
    """Shardings of a `TrainState`: optimizer moments beside their parameters.

    Args:
      optimizer: Optimizer of `make_optimizer`.
      params: Parameters, or their shapes.
      param_shardings: Tree of the parameters' shardings.
      replicated: Sharding of all other leaves.
    """
    # Only the structure is needed: the moments of a large model would not fit on one device.
    state = jax.eval_shape(lambda p: init_state(p, optimizer), params)

    def is_masked(node: Any) -> bool:
        return isinstance(node, optax.MaskedNode)

    # An optimizer for some of the parameters has such a node in place of each of the others.
    opt_state = optax.tree.map_params(
        optimizer.transform,
        lambda leaf, sharding: leaf if is_masked(leaf) else sharding,
        state.opt_state,
        param_shardings,
        transform_non_params=lambda _: replicated,
        is_leaf=is_masked,
    )
    return TrainState(param_shardings, opt_state, replicated, replicated)


def _apply_gradients(
    optimizer: Optimizer, state: TrainState, grads: Params, rate: jax.Array, finite: jax.Array
) -> TrainState:
    """Applies one optimizer step if everything is finite, and changes nothing otherwise."""
    # Not optax.apply_if_finite: its cond changes the last bits of the result and adds a pass over
    # the gradients.
    updates, opt_state = optimizer.transform.update(grads, state.opt_state, state.params)
    params = optax.apply_updates(state.params, optax.tree.scale(-rate, updates))

    def keep(new: jax.Array, old: jax.Array) -> jax.Array:
        # A select for each leaf: the compiled step is the same whether it is applied or not.
        return jnp.where(finite, new, old)

    return TrainState(
        params=jax.tree.map(keep, params, state.params),
        opt_state=jax.tree.map(keep, opt_state, state.opt_state),
        step=state.step + finite,
        skipped=state.skipped + ~finite,
    )


def _is_scanned(path: tuple) -> bool:
    """True for leaves of scanned layers.

    The backward pass sums their gradients in place. It adds to the sum a layer at a time, so a
    microbatch has no gradient tree of its own. Other leaves are used in several places of the
    model, whose gradients are added up first.
    """
    # Pairs of an adapter are small, and scaled before the scan: jax 0.10 confuses inputs of a scan
    # whose gradients are values with those that have sums to add to.
    names = [str(getattr(key, "key", "")) for key in path]
    return "layers" in names and not names[-1].startswith("lora_")
