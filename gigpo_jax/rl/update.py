"""The reinforcement learning update of a policy, and log-probabilities of its responses."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

from gigpo_jax.rl.logprobs import OutputEmbedding, token_logprobs
from gigpo_jax.rl.losses import LossSettings, LossSums, loss_divisor, policy_loss
from gigpo_jax.rl.optimizer import Optimizer
from gigpo_jax.rl.ratios import MASKS
from gigpo_jax.rl.train_step import (
    Metrics,
    Params,
    TrainState,
    TrainStep,
    Update,
)
from gigpo_jax.rl.types import StepBatch

# (trained parameters, frozen ones or None, tokens [B, T], positions [B, T], segment_ids [B, T],
# images or None, and routes [B, T, R] if a minibatch has them) -> (hidden states [B, T, D], output
# embedding [V, D])
Forward = Callable[..., tuple[jax.Array, OutputEmbedding]]
# (log-probabilities [B, C] f32, entropy [B, C] f32, microbatch without the M axis, *, iteration []
# i32) -> sums over its response tokens
Loss = Callable[..., LossSums]


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
      in_pieces: Whether the result is a `PiecewiseUpdate`, with a device call for each microbatch
        and equal up to rounding.

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
    return make_policy_update(
        forward,
        optimizer,
        partial(policy_loss, settings=settings),
        partial(loss_divisor, settings=settings),
        chunk=chunk,
        temperature=temperature,
        state_shardings=state_shardings,
        masks=settings.correction in MASKS,
        in_pieces=in_pieces,
    )


def make_policy_update(
    forward: Forward,
    optimizer: Optimizer,
    loss: Loss,
    divisor: Callable[[StepBatch], jax.Array],
    *,
    chunk: int,
    temperature: float,
    state_shardings: TrainState | None,
    masks: bool,
    in_pieces: bool,
) -> Update:
    """Builds the step of a loss and its divisor; other arguments as for `make_update`."""

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

    step = TrainStep("policy", optimizer, sums, LossSums.zero, divisor, metrics, state_shardings)
    if in_pieces:
        from gigpo_jax.rl.piecewise_update import compile_in_pieces

        return compile_in_pieces(step)
    return step.compile()
