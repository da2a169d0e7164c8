"""The clipped surrogate with a KL term and an entropy bonus, and the supervised loss, as sums over tokens.

Every function returns sums, never means: microbatches add up and the update divides once by `loss_total`, so the loss
does not depend on how a minibatch was cut. Log-probabilities are in nats.
"""

from dataclasses import dataclass, replace
from typing import Literal

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike

from gigpo_jax.rl.types import StepBatch

LOG_RATIO_LIMIT = 20.0  # exp(20) is far beyond any clip and far from overflow
KL_LIMIT = 10.0
Ratio = Literal["token", "sequence"]
Mean = Literal["tokens", "responses", "constant"]


@dataclass(frozen=True)
class LossSettings:
    """Settings of `policy_loss`.

    Attributes:
      clip_low: how far the ratio may fall below 1, in [0, 1].
      clip_high: how far it may rise above 1.
      dual_clip: > 1; a token with a negative advantage A costs at most -A dual_clip.
      kl_coef: weight of the KL estimate; not 0 needs `batch.reference`.
      entropy_coef: weight of the entropy bonus.
      importance_cap: with `batch.proximal`, the surrogate of a token is weighted by min(exp(proximal - behaviour),
        importance_cap), truncated importance sampling; None: not weighted.
      ratio: of each token, or of the whole response ("sequence", GSPO).
      mean: the loss is the mean over all response "tokens"; or the mean over "responses" of their token means; or, with
        "constant", the mean over responses of their token sums, each divided by `constant` tokens whatever its length
        (Dr. GRPO, arXiv 2503.20783).
      constant: tokens; the length limit of responses.
    """

    clip_low: float
    clip_high: float
    dual_clip: float = 3.0
    kl_coef: float = 0.0
    entropy_coef: float = 0.0
    importance_cap: float | None = None
    ratio: Ratio = "token"
    mean: Mean = "tokens"
    constant: float = 1.0


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LossSums:
    """Sums over response tokens; `a + b` joins two microbatches, `LossSums.zero()` is the empty one.

    Attributes:
      loss: [] f32, differentiable.
      tokens: [] f32, response tokens (the sum of the weights).
      kl: [] f32, k3 estimate of KL(policy || reference).
      entropy: [] f32.
      clipped: [] f32, tokens whose gradient the clip removed.
      dual_clipped: [] f32, tokens whose gradient the dual clip removed.
      mismatch: [] f32, absolute difference to the behaviour log-probabilities.
      ratio_max: [] f32, largest probability ratio; joined by maximum.
    """

    loss: Array
    tokens: Array
    kl: Array
    entropy: Array
    clipped: Array
    dual_clipped: Array
    mismatch: Array
    ratio_max: Array

    @classmethod
    def zero(cls) -> "LossSums":
        """The sums over no tokens."""
        return cls(*(jnp.zeros((), jnp.float32) for _ in range(8)))

    def __add__(self, other: "LossSums") -> "LossSums":
        """Joins the sums of two sets of tokens."""
        sums = jax.tree.map(jnp.add, self, other)
        return replace(sums, ratio_max=jnp.maximum(self.ratio_max, other.ratio_max))

    def means(self) -> dict[str, Array]:
        """The metrics but the loss by name, means over tokens; 0 without tokens."""
        sums = {
            "policy/kl": self.kl,
            "policy/entropy": self.entropy,
            "policy/clip_fraction": self.clipped,
            "policy/dual_clip_fraction": self.dual_clipped,
            "policy/behaviour_mismatch": self.mismatch,
        }
        means = {name: value / jnp.maximum(self.tokens, 1.0) for name, value in sums.items()}
        return means | {"policy/ratio_max": self.ratio_max}


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


def sequence_log_ratio(log_ratio: Array, weight: Array, response: Array) -> Array:
    """Replaces the ratio of a token by that of its whole response (GSPO, arXiv 2507.18071, eq. 7 and 14).

    The value is the mean log-ratio of the response; the gradient is that of the token's own log-probability.

    Args:
      log_ratio: [B, C] f32.
      weight: [B, C] f32, 0 for padding.
      response: [B, C] i32, as from `response_numbers`.

    Returns:
      [B, C] f32.
    """
    fixed = lax.stop_gradient(log_ratio)
    mean = response_sums(fixed * weight, response) / jnp.maximum(response_sums(weight, response), 1.0)
    return mean + log_ratio - fixed


def surrogate(
    ratio: Array, advantage: Array, *, clip_low: ArrayLike, clip_high: ArrayLike, dual_clip: ArrayLike
) -> tuple[Array, Array, Array]:
    """What a token costs: max(-A w, -A clip(w, 1 - clip_low, 1 + clip_high)), and at most -A dual_clip where A < 0.

    Args:
      ratio: [..., T] f32, w.
      advantage: [..., T] f32, A.
      clip_low, clip_high, dual_clip: see `LossSettings`.

    Returns:
      [..., T] f32 the cost; [..., T] bool where the clip took the gradient away; [..., T] bool where the dual clip did.
    """
    plain = -advantage * ratio
    bounded = -advantage * jnp.clip(ratio, 1.0 - clip_low, 1.0 + clip_high)
    cost = jnp.maximum(plain, bounded)
    ceiling = jnp.where(advantage < 0.0, -advantage * dual_clip, jnp.inf)
    return jnp.minimum(cost, ceiling), bounded > plain, cost > ceiling


def policy_loss(logprob: Array, entropy: Array, batch: StepBatch, settings: LossSettings) -> LossSums:
    """Sums the clipped surrogate loss over tokens (PPO, arXiv 1707.06347, eq. 7; dual clip, arXiv 1912.09729, eq. 5).

    A token costs `surrogate` of the ratio exp(logprob - old), plus the KL term, minus the entropy bonus. `old` is
    `batch.proximal` where given, else `batch.behaviour`. Values in padding have no effect.

    Args:
      logprob: [B, C] f32, of the policy that is trained.
      entropy: [B, C] f32, of its distributions.
      batch: a microbatch, fields without the M axis.
      settings: see `LossSettings`.

    Raises:
      ValueError: a shape differs, or the batch lacks log-probabilities that the settings need.
    """
    _check(logprob, batch, settings)
    weight = batch.weight.astype(jnp.float32)

    def clean(x: Array) -> Array:
        return jnp.where(weight > 0.0, x.astype(jnp.float32), 0.0)

    def total(x: Array, weight: Array = weight) -> Array:
        return jnp.sum(x * weight, dtype=jnp.float32)

    share = weight
    if settings.mean == "responses":
        share = weight / jnp.maximum(response_sums(weight, response_numbers(batch)), 1.0)
    elif settings.mean == "constant":
        share = weight / settings.constant
    logprob, behaviour, advantage = clean(logprob), clean(batch.behaviour), clean(batch.advantage)
    old = behaviour if batch.proximal is None else clean(batch.proximal)
    log_ratio = logprob - old
    if settings.ratio == "sequence":
        log_ratio = sequence_log_ratio(log_ratio, weight, response_numbers(batch))
    ratio = jnp.exp(jnp.clip(log_ratio, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT))
    cost, clipped, dual_clipped = surrogate(
        ratio, advantage, clip_low=settings.clip_low, clip_high=settings.clip_high, dual_clip=settings.dual_clip
    )
    if settings.importance_cap is not None:
        importance = jnp.exp(jnp.clip(old - behaviour, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT))
        cost = cost * lax.stop_gradient(jnp.minimum(importance, settings.importance_cap))
    kl = jnp.zeros_like(logprob) if batch.reference is None else k3(logprob, clean(batch.reference))
    # Without a bonus the entropy is only a metric: no backward pass for it.
    bonus = clean(entropy if settings.entropy_coef else lax.stop_gradient(entropy))
    fixed = lax.stop_gradient
    return LossSums(
        loss=total(cost, share) + settings.kl_coef * total(kl, share) - settings.entropy_coef * total(bonus, share),
        tokens=jnp.sum(weight),
        kl=fixed(total(kl)),
        entropy=fixed(total(bonus)),
        clipped=total(clipped),
        dual_clipped=total(dual_clipped),
        mismatch=fixed(total(jnp.abs((logprob if batch.proximal is None else old) - behaviour))),
        ratio_max=fixed(jnp.max(jnp.where(weight > 0.0, ratio, 0.0), initial=0.0)),
    )


def imitation_loss(logprob: Array, entropy: Array, batch: StepBatch) -> LossSums:
    """Sums the cross-entropy of the response tokens; arguments as for `policy_loss`."""
    weight = batch.weight

    def total(x: Array) -> Array:
        return jnp.sum(jnp.where(weight > 0, x, 0.0) * weight)

    return replace(
        LossSums.zero(), loss=-total(logprob), tokens=jnp.sum(weight), entropy=lax.stop_gradient(total(entropy))
    )


def response_numbers(batch: StepBatch) -> Array:
    """[B, C] i32 in [0, C), the response of its row that each response token belongs to; 0 in padding."""
    return jnp.maximum(jnp.take_along_axis(batch.segment_ids, batch.response_index, axis=1) - 1, 0)


def response_sums(values: Array, response: Array) -> Array:
    """[B, C], for each token the sum of the values [B, C] of its response."""

    def row(values: Array, number: Array) -> Array:
        return jax.ops.segment_sum(values, number, number.shape[0])[number]

    return jax.vmap(row)(values, response)


def loss_total(batch: StepBatch, mean: Mean = "tokens") -> Array:
    """[] f32, the divisor of the loss summed over a minibatch: its response tokens, or its responses."""
    if mean == "tokens":
        return jnp.maximum(jnp.sum(batch.weight), 1.0)
    responses = jnp.sum(jnp.max(batch.segment_ids, axis=-1))  # those of a row are numbered from 1
    return jnp.maximum(responses, 1).astype(jnp.float32)


def _check(logprob: Array, batch: StepBatch, settings: LossSettings) -> None:
    for name in ("behaviour", "advantage", "weight", "reference", "proximal"):
        array = getattr(batch, name)
        if array is not None and array.shape != logprob.shape:
            raise ValueError(f"{name} must have the shape of logprob {logprob.shape}, got {array.shape}")
    if settings.kl_coef and batch.reference is None:
        raise ValueError(f"kl_coef={settings.kl_coef} needs batch.reference (see make_score)")
    if settings.importance_cap is not None and batch.proximal is None:
        raise ValueError(f"importance_cap={settings.importance_cap} needs batch.proximal (see make_score)")
