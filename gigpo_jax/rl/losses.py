"""The clipped surrogate with KL term and entropy bonus, as sums over tokens.

Losses are sums, never means: microbatches add up and the update divides once by `loss_divisor`, so
the loss does not depend on how a minibatch was cut. Log-probabilities are in nats. The supervised
loss is in `imitation_update`.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Literal, Self

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike

from gigpo_jax.rl.ratios import MASKS, Correction, Ratio, limit_log_ratio
from gigpo_jax.rl.types import StepBatch

Mean = Literal["tokens", "responses", "constant", "episodes"]


@dataclass(frozen=True)
class LossSettings:
    """Settings of `policy_loss`.

    Attributes:
      clip_low: Largest fall of the ratio below 1, in [0, 1].
      clip_high: Largest rise of the ratio above 1.
      dual_clip: Limit > 1: a token with a negative advantage A costs at most -A dual_clip.
      kl_coef: Weight of the KL estimate; not 0 needs `batch.reference`.
      entropy_coef: Weight of the entropy bonus.
      correction: Correction for the difference between engine and learner, see
        `Correction`; all but "none" need `batch.proximal`.
      importance_cap: Cap of the correction, greater than 0; greater than 1 for corrections that
        leave responses out.
      ratio: Ratio that is clipped, see `rl.response_ratios`.
      power: Function from the iteration [] i32 to p of the Hölder mean, where `ratio` has one.
      mean: "tokens": the mean over all response tokens. "responses": the mean over responses of
        their token means. "constant": the mean over responses of their token sums, each divided by
        `constant` whatever its length (Dr. GRPO, arXiv 2503.20783). "episodes": as "tokens", for a
        batch that weighs tokens by their episodes.
      constant: Length limit of responses in tokens.
      token_advantages: Function ([B, C] advantages, [B, C] log-probabilities of `batch.teacher`
        less the policy's, action mask, iteration) -> [B, C] advantages; None: no change.
    """

    clip_low: float
    clip_high: float
    dual_clip: float = 3.0
    kl_coef: float = 0.0
    entropy_coef: float = 0.0
    correction: Correction = "none"
    importance_cap: float = 2.0
    ratio: Ratio = "token"
    power: Callable[[ArrayLike], ArrayLike] = lambda _: 0.0
    mean: Mean = "tokens"
    constant: float = 1.0
    token_advantages: Callable[[Array, Array, Array, ArrayLike], Array] | None = None


@dataclass(frozen=True)
class Sums:
    """Sums over tokens; `a + b` joins two microbatches.

    Attributes:
      loss: [] f32, differentiable.
      tokens: [] f32, sum of the weights.
    """

    loss: Array
    tokens: Array

    @classmethod
    def zero(cls) -> Self:
        """The sums over no tokens."""
        # Arrays, not numbers: they are carried over the loop of microbatches, and a
        # carry keeps its type.
        return cls(*(jnp.zeros((), jnp.float32) for _ in fields(cls)))

    def __add__(self, other: Self) -> Self:
        return jax.tree.map(jnp.add, self, other)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LossSums(Sums):
    """Sums over response tokens, [] f32.

    Attributes:
      kl: k3 estimate of KL(policy || reference).
      entropy: entropy of the policy, nats.
      clipped: tokens whose gradient the clip removed.
      dual_clipped: tokens whose gradient the dual clip removed.
      mismatch: absolute difference to the engine's log-probabilities of the tokens. Where the
        learner has scored them with the weights that sampled, it is the engine's error alone.
      ratio_max: largest probability ratio; joined by maximum.
    """

    kl: Array
    entropy: Array
    clipped: Array
    dual_clipped: Array
    mismatch: Array
    ratio_max: Array

    def __add__(self, other: Self) -> Self:
        # A largest value is no sum: it would grow with the number of microbatches.
        return replace(
            super().__add__(other), ratio_max=jnp.maximum(self.ratio_max, other.ratio_max)
        )

    def means(self) -> dict[str, Array]:
        """Returns all metrics but the loss, as means over tokens by name; 0 without tokens."""
        sums = {
            "policy/kl": self.kl,
            "policy/entropy": self.entropy,
            "policy/clip_fraction": self.clipped,
            "policy/dual_clip_fraction": self.dual_clipped,
            "policy/behaviour_mismatch": self.mismatch,
        }
        means = {name: value / jnp.maximum(self.tokens, 1.0) for name, value in sums.items()}
        return means | {"policy/ratio_max": self.ratio_max}


def surrogate_cost(
    ratio: Array,
    advantage: Array,
    *,
    clip_low: ArrayLike,
    clip_high: ArrayLike,
    dual_clip: ArrayLike,
) -> tuple[Array, Array, Array]:
    """Computes the clipped surrogate cost of tokens with ratios w and advantages A, [..., T] f32.

    The cost is max(-A w, -A clip(w, 1 - clip_low, 1 + clip_high)), and at most -A dual_clip for
    A < 0.

    Returns:
      [..., T] f32, cost; [..., T] bool, tokens without a gradient because of the clip; [..., T]
      bool, tokens without one because of the dual clip.
    """
    plain = -advantage * ratio
    bounded = -advantage * jnp.clip(ratio, 1.0 - clip_low, 1.0 + clip_high)
    # The larger cost: the clip takes away the gain of moving farther, and never the cost of
    # having moved too far.
    cost = jnp.maximum(plain, bounded)
    # For A < 0 the cost grows with the ratio without bound: one token that became much likelier
    # would dominate the minibatch.
    ceiling = jnp.where(advantage < 0.0, -advantage * dual_clip, jnp.inf)
    # Strictly greater: a token on the edge, or with advantage 0, does not count as clipped.
    return jnp.minimum(cost, ceiling), bounded > plain, cost > ceiling


def policy_loss(
    logprob: Array,
    entropy: Array,
    batch: StepBatch,
    settings: LossSettings,
    iteration: ArrayLike = 0,
) -> LossSums:
    """Sums the loss of PPO over tokens, with a dual clip, a KL term and an entropy bonus.

    A token costs `surrogate_cost` of its ratio, plus the KL term, minus the entropy bonus. The old
    policy is `batch.proximal` where given, else `batch.behaviour`. Values in padding have no
    effect. Sources: PPO, arXiv 1707.06347, eq. 7; dual clip, arXiv 1912.09729, eq. 5.

    Args:
      logprob: [B, C] f32, log-probabilities of the policy that is trained.
      entropy: [B, C] f32, entropies of its distributions.
      batch: Microbatch without the M axis.
      settings: Settings of the loss.
      iteration: [] i32, argument of `settings.power` and `settings.token_advantages`.
    """
    weight = kept_weight(batch, settings).astype(jnp.float32)

    # A `where` and not a product with the weight: 0 times the NaN or infinity of padding is NaN.
    def clean(x: Array) -> Array:
        return jnp.where(weight > 0.0, x.astype(jnp.float32), 0.0)

    def total(x: Array, weight: Array = weight) -> Array:
        return jnp.sum(x * weight, dtype=jnp.float32)

    # `share` weighs the loss, `weight` the metrics: these are means over tokens with any
    # `settings.mean`.
    share = _loss_share(weight, batch, settings)
    logprob = clean(logprob)
    behaviour = clean(batch.behaviour)
    advantage = clean(batch.advantage)
    # Recomputed log-probabilities have the learner's numerics: the first ratio is then 1, whatever
    # the engine rounds.
    old = behaviour if batch.proximal is None else clean(batch.proximal)
    if settings.token_advantages is not None:
        # Without a gradient: it is a weight of the advantage, and no target to move towards.
        difference = lax.stop_gradient(clean(batch.teacher) - logprob)
        advantage = settings.token_advantages(advantage, difference, batch.action_mask, iteration)
    cost, ratio, clipped, dual_clipped = _token_costs(
        logprob - old, advantage, weight, batch, settings, iteration
    )
    # The cost, not the ratio: the correction must not be clipped with it.
    cost = cost * _importance(old - behaviour, batch, settings)
    kl = jnp.zeros_like(logprob)
    if batch.reference is not None:
        from gigpo_jax.rl.kl import k3

        kl = k3(logprob, clean(batch.reference))
    # Without a bonus the entropy is only a metric: no backward pass for it.
    bonus = clean(entropy if settings.entropy_coef else lax.stop_gradient(entropy))
    loss = (
        total(cost, share)
        + settings.kl_coef * total(kl, share)
        - settings.entropy_coef * total(bonus, share)
    )
    learner_logprob = logprob if batch.proximal is None else old
    # A metric must not add to the backward pass.
    metric = lax.stop_gradient
    return LossSums(
        loss=loss,
        tokens=jnp.sum(weight),
        kl=metric(total(kl)),
        entropy=metric(total(bonus)),
        clipped=total(clipped),
        dual_clipped=total(dual_clipped),
        mismatch=metric(total(jnp.abs(learner_logprob - behaviour))),
        ratio_max=metric(jnp.max(jnp.where(weight > 0.0, ratio, 0.0), initial=0.0)),
    )


def _loss_share(weight: Array, batch: StepBatch, settings: LossSettings) -> Array:
    """Returns the weights of tokens in the loss, [B, C], before `loss_divisor` divides it."""
    if settings.mean == "responses":
        from gigpo_jax.rl.response_ratios import response_numbers, response_sums

        response_weight = response_sums(weight, response_numbers(batch))
        # A safe divisor: padding belongs to no response, and 0 / 0 would spoil the gradient.
        return weight / jnp.where(response_weight > 0.0, response_weight, 1.0)
    if settings.mean == "constant":
        return weight / settings.constant
    return weight


def _token_costs(
    log_ratio: Array,
    advantage: Array,
    weight: Array,
    batch: StepBatch,
    settings: LossSettings,
    iteration: ArrayLike,
) -> tuple[Array, Array, Array, Array]:
    """Computes cost and ratio of each token, and which tokens lose their gradient to each clip."""
    clip_low: ArrayLike = settings.clip_low
    clip_high: ArrayLike = settings.clip_high
    if batch.clip_scale is not None:
        # Values of padding must have no effect, and NaN is one of them.
        clip_scale = jnp.where(weight > 0.0, batch.clip_scale, 1.0)
        clip_low = clip_low * clip_scale
        clip_high = clip_high * clip_scale
    clips: dict[str, ArrayLike] = {"clip_low": clip_low, "clip_high": clip_high}
    clipped_token = None
    if settings.ratio != "token":
        from gigpo_jax.rl.response_ratios import join_log_ratios

        power = settings.power(iteration)
        log_ratio, clipped_token = join_log_ratios(
            log_ratio, advantage, weight, batch, ratio=settings.ratio, power=power, **clips
        )
    ratio = jnp.exp(limit_log_ratio(log_ratio))
    cost, clipped, dual_clipped = surrogate_cost(
        ratio, advantage, **clips, dual_clip=settings.dual_clip
    )
    if clipped_token is not None:
        clipped = clipped_token
    return cost, ratio, clipped, dual_clipped


def _importance(log_ratio: Array, batch: StepBatch, settings: LossSettings) -> ArrayLike:
    """Returns truncated importance weights of the old policy, without a gradient; 1 without any."""
    if settings.correction not in ("truncated", "truncated_sequence"):
        return 1.0
    from gigpo_jax.rl.response_ratios import importance_weight

    weight = importance_weight(log_ratio, batch, settings.correction, settings.importance_cap)
    return lax.stop_gradient(weight)


def kept_weight(batch: StepBatch, settings: LossSettings) -> Array:
    """Returns weights, [..., B, C], that are 0 for responses left out by `settings.correction`."""
    # The truncated corrections change the cost of a response, and not whether it counts.
    if settings.correction not in MASKS:
        return batch.weight
    from gigpo_jax.rl.response_ratios import within_cap

    return batch.weight * within_cap(batch, settings.correction, settings.importance_cap)


def loss_divisor(batch: StepBatch, settings: LossSettings | None = None) -> Array:
    """Counts the response tokens or the responses of a minibatch, [] f32, to divide the loss by."""
    if settings is None or settings.mean in ("tokens", "episodes"):
        # At least 1: a minibatch may hold no token, or lose all of them to a correction.
        weight = batch.weight if settings is None else kept_weight(batch, settings)
        return jnp.maximum(jnp.sum(weight), 1.0)
    if settings.correction in MASKS:
        from gigpo_jax.rl.response_ratios import count_responses

        responses = count_responses(kept_weight(batch, settings), batch)
    else:
        # Responses of a row are numbered from 1.
        responses = jnp.sum(jnp.max(batch.responses, axis=-1))
    return jnp.maximum(responses, 1).astype(jnp.float32)
