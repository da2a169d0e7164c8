"""Learning from pairs of episodes with the loss of DPO (arXiv 2305.18290), in two passes.

The loss compares sums over all steps of two episodes, which no microbatch holds together. With D
the sum of log pi(a) - log pi_old(a) over an episode, P pairs, and the won episode first,

    L = mean over pairs of -log sigmoid(beta (D+ - D-))

its gradient is the sum over episodes of dL/dD times the gradient of the episode's log-probability.
The first pass gives all D; `pair_slopes` has dL/dD from them. The second pass is the update of
`make_slope_update`, exact however the steps are packed.
"""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from gigpo_jax.rl.optimizer import Optimizer
from gigpo_jax.rl.train_step import Params, TrainState, TrainStep, Update
from gigpo_jax.rl.types import StepBatch
from gigpo_jax.rl.update import Forward, response_logprobs


class PairSums(NamedTuple):
    """The pairs of E episodes, summed.

    Attributes:
      slope: [E] f64, derivative of the summed loss with respect to the log-ratio of each episode.
      loss: Sum of the pairs' losses, nats.
      right: Number of pairs whose won episode has the larger log-ratio.
      pairs: Number of pairs.
    """

    slope: np.ndarray
    loss: float
    right: int
    pairs: int


def pair_slopes(
    log_ratio: np.ndarray, won: np.ndarray, group: np.ndarray, *, beta: float
) -> PairSums:
    """Differentiates the summed loss of all pairs of a won and a lost episode of one group.

    Args:
      log_ratio: [E] f, nats; D of each episode.
      won: [E] bool.
      group: [E] i, task group.
      beta: Factor of the log-ratios, > 0.
    """
    slope = np.zeros(len(log_ratio))
    loss = 0.0
    right = 0
    pairs = 0
    for number in np.unique(group):
        members = group == number
        winners = np.flatnonzero(members & won)
        losers = np.flatnonzero(members & ~won)
        margin = log_ratio[winners][:, None].astype(np.float64) - log_ratio[losers]
        loss += float(np.logaddexp(0.0, -beta * margin).sum())
        right += int((margin > 0).sum())
        pairs += margin.size
        # -d/dm log sigmoid(beta m) = -beta sigmoid(-beta m); tanh does not overflow.
        pull = beta * 0.5 * (1.0 - np.tanh(0.5 * beta * margin))
        slope[winners] -= pull.sum(1)
        slope[losers] += pull.sum(0)
    return PairSums(slope, loss, right, pairs)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SlopeSums:
    """Sums over response tokens.

    Attributes:
      loss: [] f32, sum of slope times log-probability. Its gradient is the pairs' gradient.
    """

    loss: Array

    def __add__(self, other: "SlopeSums") -> "SlopeSums":
        return SlopeSums(self.loss + other.loss)

    @classmethod
    def zero(cls) -> "SlopeSums":
        """The sums over no tokens."""
        return cls(jnp.zeros(()))


def make_slope_update(
    forward: Forward,
    optimizer: Optimizer,
    *,
    name: str,
    chunk: int,
    temperature: float,
    state_shardings: TrainState | None = None,
) -> Update:
    """Builds a train step whose gradient sums slopes times gradients of log-probabilities.

    The slopes of episodes stand in the place of a minibatch's advantages. Arguments and result are
    as for `update.make_update`; `name` begins the metrics.
    """

    def measure(params: Params, frozen: Params, micro: StepBatch, iteration: Array) -> SlopeSums:
        del iteration
        bound = partial(forward, params, frozen)
        logprob, _ = response_logprobs(bound, micro, chunk=chunk, temperature=temperature)
        # `where` inside: a NaN of padding would survive a product with the weight 0.
        logprob = jnp.where(micro.weight > 0.0, logprob, 0.0)
        return SlopeSums(jnp.sum(micro.advantage * logprob))

    step = TrainStep(
        name,
        optimizer,
        measure,
        SlopeSums.zero,
        divisor=lambda batch: jnp.ones(()),
        metrics=lambda sums, batch: {},
        state_shardings=state_shardings,
    )
    return step.compile()
