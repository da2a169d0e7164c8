"""The clipped surrogate with a KL term and an entropy bonus, as sums over tokens.

Everything here returns sums, never means: microbatches add up, and `LossSums.means` divides once, so the loss is the
mean over all response tokens of the whole minibatch however it was cut. Log-probabilities are in nats.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike

LOG_RATIO_LIMIT = 20.0  # exp(20) is far beyond any clip and far from overflow
KL_LIMIT = 10.0


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LossSums:
    """Sums over response tokens; `a + b` joins two microbatches, `LossSums.zero()` is the empty one.

    Attributes:
      loss: [] f32, differentiable: policy loss + kl_coef * kl - entropy_coef * entropy.
      tokens: [] f32, response tokens (the sum of the weights).
      policy_loss: [] f32, the clipped surrogate alone.
      kl: [] f32, k3 estimate of KL(policy || reference).
      entropy: [] f32.
      clipped: [] f32, tokens where the clip took the gradient away.
      dual_clipped: [] f32, tokens with a negative advantage where the dual clip did.
      mismatch: [] f32, absolute difference to the behaviour log-probabilities.
      ratio_max: [] f32, largest probability ratio; joined by maximum.
    """

    loss: Array
    tokens: Array
    policy_loss: Array
    kl: Array
    entropy: Array
    clipped: Array
    dual_clipped: Array
    mismatch: Array
    ratio_max: Array

    @classmethod
    def zero(cls) -> "LossSums":
        """The sums over no tokens."""
        return cls(*(jnp.zeros((), jnp.float32) for _ in range(9)))

    def __add__(self, other: "LossSums") -> "LossSums":
        """Joins the sums of two sets of tokens."""
        sums = jax.tree.map(jnp.add, self, other)
        return LossSums(**{**vars(sums), "ratio_max": jnp.maximum(self.ratio_max, other.ratio_max)})

    def sums(self) -> dict[str, Array]:
        """The metrics that are sums over tokens, by metric name."""
        return {
            "policy/kl": self.kl,
            "policy/entropy": self.entropy,
            "policy/clip_fraction": self.clipped,
            "policy/dual_clip_fraction": self.dual_clipped,
            "policy/behaviour_mismatch": self.mismatch,
        }

    def maxima(self) -> dict[str, Array]:
        """The metrics that are maxima over tokens, by metric name."""
        return {"policy/ratio_max": self.ratio_max}

    def means(self) -> dict[str, Array]:
        """All metrics of the tokens summed so far, by metric name; 0 if there were no tokens."""
        sums = {"policy/loss": self.loss, **self.sums()}
        return {name: value / jnp.maximum(self.tokens, 1.0) for name, value in sums.items()} | self.maxima()


def k3(logprob: Array, reference: Array) -> Array:
    """Estimates KL(policy || reference) from one sample a token, exp(d) - d - 1 with d = reference - logprob.

    It is never negative and unbiased for samples of the policy (http://joschu.net/blog/kl-approx.html, "k3"). It is
    clamped to 10, where it has no gradient: one token far from the reference does not outweigh a minibatch.

    Args:
      logprob: [..., T] f32, of the policy.
      reference: [..., T] f32.

    Returns:
      [..., T] f32.
    """
    difference = jnp.clip(reference - logprob, -2 * KL_LIMIT, 2 * KL_LIMIT)  # so that exp stays finite
    return jnp.minimum(jnp.expm1(difference) - difference, KL_LIMIT)


def sequence_log_ratio(log_ratio: Array, weight: Array, sequence: Array) -> Array:
    """Replaces the ratio of a token by that of its whole response (GSPO, arXiv 2507.18071, eq. 7 and 14).

    The value is the mean log-ratio of the response; the gradient is that of the token's own log-probability.

    Args:
      log_ratio: [B, T] f32.
      weight: [B, T] f32, 0 for padding.
      sequence: [B, T] i32 in [0, T), which response of its row a token belongs to.

    Returns:
      [B, T] f32.
    """

    def row(values: Array, weights: Array, number: Array) -> Array:
        total = jax.ops.segment_sum(values * weights, number, number.shape[0])
        return (total / jnp.maximum(jax.ops.segment_sum(weights, number, number.shape[0]), 1.0))[number]

    mean = jax.vmap(row)(lax.stop_gradient(log_ratio), weight, sequence)
    return mean + log_ratio - lax.stop_gradient(log_ratio)


def surrogate(
    ratio: Array, advantage: Array, *, clip_low: ArrayLike, clip_high: ArrayLike, dual_clip: ArrayLike
) -> tuple[Array, Array, Array]:
    """What a token costs: max(-A w, -A clip(w, 1 - clip_low, 1 + clip_high)), and at most -A dual_clip where A < 0.

    Args:
      ratio: [..., T] f32, w.
      advantage: [..., T] f32, A.
      clip_low, clip_high, dual_clip: as for `policy_loss`.

    Returns:
      [..., T] f32 the cost; [..., T] bool where the clip took the gradient away; [..., T] bool where the dual clip did.
    """
    plain = -advantage * ratio
    bounded = -advantage * jnp.clip(ratio, 1.0 - clip_low, 1.0 + clip_high)
    cost = jnp.maximum(plain, bounded)
    ceiling = jnp.where(advantage < 0.0, -advantage * dual_clip, jnp.inf)
    return jnp.minimum(cost, ceiling), bounded > plain, cost > ceiling


def policy_loss(
    logprob: Array,
    behaviour: Array,
    advantage: Array,
    weight: Array,
    *,
    clip_low: ArrayLike,
    clip_high: ArrayLike,
    dual_clip: ArrayLike = 3.0,
    reference: Array | None = None,
    kl_coef: ArrayLike = 0.0,
    entropy: Array | None = None,
    entropy_coef: ArrayLike = 0.0,
    proximal: Array | None = None,
    tis_cap: ArrayLike | None = None,
    sequence: Array | None = None,
) -> LossSums:
    """Sums the clipped surrogate loss over tokens (PPO, arXiv 1707.06347, eq. 7; dual clip, arXiv 1912.09729, eq. 5).

    A token costs `surrogate` of the ratio exp(logprob - old); `old` is `proximal` where given, else `behaviour`. What
    padding holds does not matter.

    Args:
      logprob: [..., T] f32, of the policy that is trained; the only input with a gradient besides `entropy`.
      behaviour: [..., T] f32, of the policy that sampled the tokens.
      advantage: [..., T] f32.
      weight: [..., T] f32, 1 for response tokens, 0 for padding and prompts.
      clip_low: how far the ratio may fall below 1 in [0, 1].
      clip_high: how far it may rise above 1.
      dual_clip: > 1.
      reference: [..., T] f32, of the reference policy; without it there is no KL term.
      kl_coef: weight of the KL estimate.
      entropy: [..., T] f32, of the policy's distribution; without it there is no bonus.
      entropy_coef: weight of the bonus.
      proximal: [..., T] f32, the learner's own log-probabilities before the first update.
      tis_cap: with `proximal`, the surrogate of a token is weighted by min(exp(proximal - behaviour), tis_cap)
        (truncated importance sampling), which corrects for an engine that computes otherwise or lags behind.
      sequence: [B, T] i32 in [0, T), the response of each token; given, the ratio is of whole responses (GSPO).

    Returns:
      LossSums.

    Raises:
      ValueError: shapes differ, or `tis_cap` comes without `proximal`.
    """
    given = {"behaviour": behaviour, "advantage": advantage, "weight": weight, "reference": reference}
    for name, array in (given | {"entropy": entropy, "proximal": proximal, "sequence": sequence}).items():
        if array is not None and array.shape != logprob.shape:
            raise ValueError(f"{name} must have the shape of logprob {logprob.shape}, got {array.shape}")
    if tis_cap is not None and proximal is None:
        raise ValueError("tis_cap needs proximal, the learner's own log-probabilities")
    weight = weight.astype(jnp.float32)

    def clean(x: Array) -> Array:
        return jnp.where(weight > 0.0, x.astype(jnp.float32), 0.0)

    logprob, behaviour, advantage = clean(logprob), clean(behaviour), clean(advantage)
    old = behaviour if proximal is None else clean(proximal)
    log_ratio = logprob - old
    if sequence is not None:
        log_ratio = sequence_log_ratio(log_ratio, weight, sequence)
    ratio = jnp.exp(jnp.clip(log_ratio, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT))
    cost, clipped, dual_clipped = surrogate(
        ratio, advantage, clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip
    )
    if tis_cap is not None:
        importance = jnp.exp(jnp.clip(old - behaviour, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT))
        cost = cost * lax.stop_gradient(jnp.minimum(importance, tis_cap))

    def total(x: Array) -> Array:
        return jnp.sum(x * weight, dtype=jnp.float32)

    policy = total(cost)
    kl = jnp.float32(0.0) if reference is None else total(k3(logprob, clean(reference)))
    bonus = jnp.float32(0.0) if entropy is None else total(clean(entropy))
    sums = LossSums(
        loss=policy + kl_coef * kl - entropy_coef * bonus,
        tokens=jnp.sum(weight),
        policy_loss=policy,
        kl=kl,
        entropy=bonus,
        clipped=total(clipped),
        dual_clipped=total(dual_clipped),
        mismatch=total(jnp.abs((logprob if proximal is None else old) - behaviour)),
        ratio_max=jnp.max(jnp.where(weight > 0.0, ratio, 0.0), initial=0.0),
    )
    metrics = {k: lax.stop_gradient(v) for k, v in vars(sums).items() if k != "loss"}
    return LossSums(loss=sums.loss, **metrics)
