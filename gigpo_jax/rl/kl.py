"""The KL estimate of the loss."""

import jax.numpy as jnp
from jax import Array

KL_LIMIT = 10.0


def k3(logprob: Array, reference: Array) -> Array:
    """Estimates KL(policy || reference) from one sample a token.

    The estimate, exp(d) - d - 1 with d = reference - logprob, is never negative, and unbiased for
    samples of the policy (http://joschu.net/blog/kl-approx.html, "k3"). It is clamped to 10, where
    it has no gradient: one token far from the reference does not outweigh a minibatch. Arguments
    and result are [..., T] f32, nats.
    """
    # Clipped before the exponential: an infinity would make the gradient of the minimum NaN.
    difference = jnp.clip(reference - logprob, -2 * KL_LIMIT, 2 * KL_LIMIT)
    # expm1: for most tokens the difference is small, and exp(d) - 1 would lose its digits.
    return jnp.minimum(jnp.expm1(difference) - difference, KL_LIMIT)
