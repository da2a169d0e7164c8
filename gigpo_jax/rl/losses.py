"""The clipped surrogate with a KL term and an entropy bonus, and the supervised loss, as sums over tokens.

Every function returns sums, never means: microbatches add up and the update divides once by `loss_total`, so the loss
does not depend on how a minibatch was cut. Log-probabilities are in nats.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Literal, Self

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike

from gigpo_jax.rl import ratios
from gigpo_jax.rl.ratios import response_numbers, response_sums
from gigpo_jax.rl.types import StepBatch

KL_LIMIT = 10.0
Mean = Literal["tokens", "responses", "constant", "episodes"]


@dataclass(frozen=True)
class LossSettings:
    """Settings of `policy_loss`.

    Attributes:
      clip_low: how far the ratio may fall below 1, in [0, 1].
      clip_high: how far it may rise above 1.
      dual_clip: > 1; a token with a negative advantage A costs at most -A dual_clip.
      kl_coef: weight of the KL estimate; not 0 needs `batch.reference`.
      entropy_coef: weight of the entropy bonus.
      correction: for the difference between engine and learner, see `ratios.Correction`; all but "none" need
        `batch.proximal`.
      importance_cap: of the correction, greater than 0; greater than 1 for those that leave responses out.
      ratio: what is clipped, see `rl.ratios`.
      power: iteration [] i32 -> p of the Hölder mean.
      mean: the loss is the mean over all response "tokens"; or the mean over "responses" of their token means; or, with
        "constant", the mean over responses of their token sums, each divided by `constant` tokens whatever its length
        (Dr. GRPO, arXiv 2503.20783). "episodes": as "tokens", of a batch that weighs tokens by their episodes.
      constant: tokens; the length limit of responses.
      token_advantages: ([B, C] advantages, [B, C] log-probabilities of `batch.teacher` less the policy's, action mask,
        iteration) -> [B, C] advantages in their place; None: they stay.
    """

    clip_low: float
    clip_high: float
    dual_clip: float = 3.0
    kl_coef: float = 0.0
    entropy_coef: float = 0.0
    correction: ratios.Correction = "none"
    importance_cap: float = 2.0
    ratio: ratios.Ratio = "token"
    power: Callable[[ArrayLike], ArrayLike] = lambda _: 0.0
    mean: Mean = "tokens"
    constant: float = 1.0
    token_advantages: Callable[[Array, Array, Array, ArrayLike], Array] | None = None


@dataclass(frozen=True)
class Sums:
    """Sums over tokens; `a + b` joins two microbatches.

    Attributes:
      loss: [] f32, differentiable.
      tokens: [] f32, the sum of the weights.
    """

    loss: Array
    tokens: Array

    @classmethod
    def zero(cls) -> Self:
        """The sums over no tokens."""
        return cls(*(jnp.zeros((), jnp.float32) for _ in fields(cls)))

    def __add__(self, other: Self) -> Self:
        """Joins the sums of two sets of tokens."""
        return jax.tree.map(jnp.add, self, other)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LossSums(Sums):
    """Sums over response tokens.

    Attributes:
      kl: [] f32, k3 estimate of KL(policy || reference).
      entropy: [] f32.
      clipped: [] f32, tokens whose gradient the clip removed.
      dual_clipped: [] f32, tokens whose gradient the dual clip removed.
      mismatch: [] f32, absolute difference to the behaviour log-probabilities.
      ratio_max: [] f32, largest probability ratio; joined by maximum.
    """

    kl: Array
    entropy: Array
    clipped: Array
    dual_clipped: Array
    mismatch: Array
    ratio_max: Array

    def __add__(self, other: Self) -> Self:
        """Joins the sums of two sets of tokens."""
        return replace(super().__add__(other), ratio_max=jnp.maximum(self.ratio_max, other.ratio_max))

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


def policy_loss(
    logprob: Array, entropy: Array, batch: StepBatch, settings: LossSettings, iteration: ArrayLike = 0
) -> LossSums:
    """Sums the clipped surrogate loss over tokens (PPO, arXiv 1707.06347, eq. 7; dual clip, arXiv 1912.09729, eq. 5).

    A token costs `surrogate` of its ratio (`rl.ratios`), plus the KL term, minus the entropy bonus. The old policy is
    `batch.proximal` where given, else `batch.behaviour`. Values in padding have no effect.

    Args:
      logprob: [B, C] f32, of the policy that is trained.
      entropy: [B, C] f32, of its distributions.
      batch: a microbatch, fields without the M axis.
      settings: see `LossSettings`.
      iteration: [] i32, read by `settings.power` and `settings.token_advantages`.

    Raises:
      ValueError: a shape differs, or the batch lacks log-probabilities that the settings need.
    """
    _check(logprob, batch, settings)
    weight = kept_weight(batch, settings).astype(jnp.float32)

    def clean(x: Array) -> Array:
        return jnp.where(weight > 0.0, x.astype(jnp.float32), 0.0)

    def total(x: Array, weight: Array = weight) -> Array:
        return jnp.sum(x * weight, dtype=jnp.float32)

    share = weight
    if settings.mean == "responses":
        whole = response_sums(weight, response_numbers(batch))
        share = weight / jnp.where(whole > 0.0, whole, 1.0)
    elif settings.mean == "constant":
        share = weight / settings.constant
    logprob, behaviour, advantage = clean(logprob), clean(batch.behaviour), clean(batch.advantage)
    old = behaviour if batch.proximal is None else clean(batch.proximal)
    if settings.token_advantages is not None:
        difference = lax.stop_gradient(clean(batch.teacher) - logprob)
        advantage = settings.token_advantages(advantage, difference, batch.action_mask, iteration)
    cost, ratio, clipped, dual_clipped = _cost(logprob - old, advantage, weight, batch, settings, iteration)
    if settings.correction in ("truncated", "truncated_sequence"):
        importance = ratios.importance_weight(old - behaviour, batch, settings.correction, settings.importance_cap)
        cost = cost * lax.stop_gradient(importance)
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


def _cost(
    log_ratio: Array,
    advantage: Array,
    weight: Array,
    batch: StepBatch,
    settings: LossSettings,
    iteration: ArrayLike,
) -> tuple[Array, Array, Array, Array]:
    """[B, C] what each token costs, its ratio, and where the clip and the dual clip took the gradient away."""
    clips: dict[str, ArrayLike] = {"clip_low": settings.clip_low, "clip_high": settings.clip_high}
    if batch.clip_scale is not None:
        clips = {name: clip * jnp.where(weight > 0.0, batch.clip_scale, 1.0) for name, clip in clips.items()}
    clipped_token = None
    if settings.ratio == "hoelder_tokens":
        log_ratio, clipped_token = ratios.clip_log_ratio(log_ratio, advantage, **clips)
    if settings.ratio == "sequence":
        log_ratio = ratios.sequence_log_ratio(log_ratio, weight, response_numbers(batch))
    elif settings.ratio != "token":
        member, response = (weight > 0.0).astype(jnp.float32), response_numbers(batch)
        if settings.ratio == "product":
            log_ratio = ratios.product_log_ratio(log_ratio, member, response)
        else:
            log_ratio = ratios.hoelder_log_ratio(log_ratio, member, response, settings.power(iteration))
    ratio = jnp.exp(ratios.limited(log_ratio))
    cost, clipped, dual_clipped = surrogate(ratio, advantage, **clips, dual_clip=settings.dual_clip)
    return cost, ratio, clipped if clipped_token is None else clipped_token, dual_clipped


def imitation_loss(logprob: Array, entropy: Array, batch: StepBatch) -> LossSums:
    """Sums the cross-entropy of the response tokens; arguments as for `policy_loss`."""
    weight = batch.weight

    def total(x: Array) -> Array:
        return jnp.sum(jnp.where(weight > 0, x, 0.0) * weight)

    return replace(
        LossSums.zero(), loss=-total(logprob), tokens=jnp.sum(weight), entropy=lax.stop_gradient(total(entropy))
    )


def kept_weight(batch: StepBatch, settings: LossSettings) -> Array:
    """[..., B, C], the weights without the responses that `settings.correction` leaves out."""
    if settings.correction not in ratios.MASKS:
        return batch.weight
    return batch.weight * ratios.within_cap(batch, settings.correction, settings.importance_cap)


def loss_total(batch: StepBatch, settings: LossSettings | None = None) -> Array:
    """[] f32, the divisor of the loss summed over a minibatch: its response tokens, or its responses."""
    if settings is None or settings.mean in ("tokens", "episodes"):
        weight = batch.weight if settings is None else kept_weight(batch, settings)
        return jnp.maximum(jnp.sum(weight), 1.0)
    if settings.correction in ratios.MASKS:
        kept = (kept_weight(batch, settings) > 0.0).astype(jnp.float32)
        responses = jnp.sum(kept / jnp.maximum(response_sums(kept, response_numbers(batch)), 1.0))
    else:
        responses = jnp.sum(jnp.max(batch.segment_ids, axis=-1))  # those of a row are numbered from 1
    return jnp.maximum(responses, 1).astype(jnp.float32)


def _check(logprob: Array, batch: StepBatch, settings: LossSettings) -> None:
    for name in ("behaviour", "advantage", "weight", "reference", "proximal", "teacher"):
        array = getattr(batch, name)
        if array is not None and array.shape != logprob.shape:
            raise ValueError(f"{name} must have the shape of logprob {logprob.shape}, got {array.shape}")
    if settings.kl_coef and batch.reference is None:
        raise ValueError(f"kl_coef={settings.kl_coef} needs batch.reference (see make_logprobs)")
    if settings.correction != "none" and batch.proximal is None:
        raise ValueError(f"correction={settings.correction!r} needs batch.proximal (see make_logprobs)")
