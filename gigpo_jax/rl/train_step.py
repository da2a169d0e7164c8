"""The train step: a pure, jitted, donated function (state, minibatch) -> (state, metrics).

Gradients of the M microbatches of a minibatch are summed in float32 inside one jitted call, in
place; M is a run-time value, so minibatches of any size share one compiled program. Every loss is a
sum over the minibatch that is divided once, hence the result does not depend on how the steps were
packed. A loss or gradient that is not finite leaves parameters and optimizer as they were; it is
counted in the state.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from gigpo_jax.rl.optimizer import Optimizer
from gigpo_jax.rl.types import StepBatch

Params = Any
Metrics = dict[str, jax.Array]
# (trained parameters, frozen ones or None, microbatch without the M axis, iteration [] i32) -> sums
# of the microbatch, with a `loss`
Measure = Callable[[Params, Params, StepBatch, jax.Array], Any]
# (state, minibatch, frozen parameters = None, iteration = None, rate = None)
Update = Callable[..., tuple["TrainState", Metrics]]
# (result of a device call, microbatches done) -> None
Between = Callable[[Any, int], None]
# Sums and float32 gradients of the microbatches so far
Totals = tuple[Any, Params]


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


def shard_state(
    optimizer: Optimizer, params: Params, param_shardings: Params, replicated: Any
) -> TrainState:
    """Shardings of a `TrainState`: moments beside their parameters, other leaves `replicated`.

    `params` are parameters or their shapes.
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


def select_microbatch(batch: StepBatch, m: jax.Array | int) -> StepBatch:
    """Selects microbatch m of a minibatch: the same fields without the M axis."""
    # The number of microbatches is a scalar: it belongs to all of them and has no M axis.
    return jax.tree.map(
        lambda x: jax.lax.dynamic_index_in_dim(x, m, keepdims=False) if x.ndim else x, batch
    )


@dataclass(frozen=True)
class TrainStep:
    """A train step of any loss; `compile` makes an `Update` of it.

    Attributes:
      name: Prefix of the metrics `name`/{loss,grad_norm,lr,skipped}.
      optimizer: Optimizer.
      measure: Function for the sums of a microbatch; their `loss` is differentiated, and `a + b`
        joins them.
      zero: Function for the sums over no tokens.
      divisor: Function from a minibatch to the divisor of the summed loss.
      metrics: Function (sums of a minibatch, minibatch) -> further metrics.
      state_shardings: Sharding of each leaf of the state.
    """

    name: str
    optimizer: Optimizer
    measure: Measure
    zero: Callable[[], Any]
    divisor: Callable[[StepBatch], jax.Array]
    metrics: Callable[[Any, StepBatch], Metrics]
    state_shardings: TrainState | None

    def compile(self) -> Update:
        """Jits the step as one program; see `update.make_update`."""
        state_shardings, _ = self.result_shardings()
        return jax.jit(self.update, donate_argnums=0, out_shardings=state_shardings)

    def result_shardings(self) -> tuple[Any, Any]:
        """Returns the shardings of (state, metrics) and of `Totals`; None where XLA chooses."""
        # Without shardings of the results, XLA may choose others than the donated state has;
        # the next call would then compile again and could not reuse the memory.
        if self.state_shardings is None:
            return None, None
        return (self.state_shardings, None), (None, self.state_shardings.params)

    def update(
        self,
        state: TrainState,
        batch: StepBatch,
        frozen: Params = None,
        iteration: jax.Array | None = None,
        rate: jax.Array | None = None,
    ) -> tuple[TrainState, Metrics]:
        """Makes the whole step."""
        count = state.step if iteration is None else iteration
        span = (0, batch.microbatches)
        totals = self.add(state.params, batch, frozen, count, span, self.start(state.params))
        return self.apply(state, batch, totals, count, rate)

    def start(self, params: Params) -> Totals:
        """Sums and gradients of no tokens."""
        zeros = jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), params)
        return self.zero(), self._place(zeros)

    def add(
        self,
        params: Params,
        batch: StepBatch,
        frozen: Params,
        count: jax.Array,
        span: tuple[Any, Any],
        totals: Totals,
    ) -> Totals:
        """Adds the microbatches from span[0] to below span[1]."""
        # Of the whole minibatch, before any microbatch: the gradient is then the gradient of one
        # large batch, however steps are spread over microbatches and devices.
        divisor = self.divisor(batch)

        def objective(params: Params, m: jax.Array) -> tuple[jax.Array, Any]:
            sums = self.measure(params, frozen, select_microbatch(batch, m), count)
            # Divided before the gradient is taken: gradients of microbatches add up to the mean's.
            return sums.loss / divisor, sums

        return _accumulate_gradients(objective, params, self._place, span, totals)

    def apply(
        self,
        state: TrainState,
        batch: StepBatch,
        totals: Totals,
        count: jax.Array,
        rate: jax.Array | None,
    ) -> tuple[TrainState, Metrics]:
        """Makes the optimizer's step."""
        sums, grads = totals
        # Before the clip: the metric shows what the clip had to scale down.
        grad_norm = optax.tree.norm(grads)
        if rate is None:
            rate = jnp.asarray(self.optimizer.schedule(count), jnp.float32)
        # A finite loss can have gradients that are not: both decide whether the step is applied.
        finite = jnp.isfinite(sums.loss) & jnp.isfinite(grad_norm)
        record = self.metrics(sums, batch) | {
            f"{self.name}/loss": sums.loss / self.divisor(batch),
            f"{self.name}/grad_norm": grad_norm,
            f"{self.name}/lr": rate,
            f"{self.name}/skipped": 1.0 - finite.astype(jnp.float32),
        }
        return _apply_gradients(self.optimizer, state, grads, rate, finite), record

    def _place(self, gradients: Params) -> Params:
        """Puts gradients into the shardings of the parameters."""
        if self.state_shardings is None:
            return gradients
        return jax.lax.with_sharding_constraint(gradients, self.state_shardings.params)


def _accumulate_gradients(
    objective: Callable[[Params, jax.Array], tuple[jax.Array, Any]],
    params: Params,
    place: Callable[[Params], Params],
    span: tuple[Any, Any],
    totals: Totals,
) -> Totals:
    """Adds losses and gradients of microbatches from span[0] to below span[1]; gradients in place.

    Args:
      objective: Function (parameters, m) -> loss and sums of microbatch m.
      params: Parameters.
      place: Function that puts a tree of gradients into the shardings of the parameters.
      span: The first microbatch, and the index behind the last one.
      totals: Sums and float32 gradients of earlier microbatches.
    """
    sums, gradients = totals
    # A reference for each leaf: the backward pass itself adds to the references of scanned layers,
    # so no second gradient tree is ever held. Other gradients come as values and are added here.
    references = jax.tree.map(jax.new_ref, gradients)

    # A model with layers of two kinds scans slices of its stacks: jax 0.10 cannot add to their
    # gradients in place.
    is_sliced = isinstance(params, dict) and bool({"dense_layers", "delta_layers"} & params.keys())
    value_references = []

    def place_for_gradient(path: tuple, reference: Any) -> Any:
        if _is_scanned(path) and not is_sliced:
            return reference
        value_references.append(reference)
        return jax.ad.GradValue()  # type: ignore[attr-defined]

    in_place = jax.tree_util.tree_map_with_path(place_for_gradient, references)

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


def _is_scanned(path: tuple) -> bool:
    """True for leaves of scanned layers, whose gradients the backward pass sums a layer at a time.

    Other leaves are used in several places of the model, whose gradients are added up first.
    """
    # Pairs of an adapter are small, and scaled before the scan: jax 0.10 confuses inputs of a scan
    # whose gradients are values with those that have sums to add to.
    names = [str(getattr(key, "key", "")) for key in path]
    return "layers" in names and not names[-1].startswith("lora_")


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
