"""Numbers of models that have experts, and their given experts by layer."""

import jax
import jax.numpy as jnp

from gigpo_jax.models.decoder_config import LAYERS, DecoderConfig


def route_width(config: DecoderConfig) -> int:
    """R, experts of a token in all layers."""
    if config.experts is None:
        return 0
    return len(config.layer_numbers(LAYERS)) * config.experts.per_token


def count_idle_params(config: DecoderConfig) -> int:
    """Number of parameters of the experts that a token does not go through."""
    if config.experts is None:
        return 0
    idle_experts = len(config.layer_numbers(LAYERS)) * config.experts.count - route_width(config)
    return idle_experts * 3 * config.hidden_size * config.experts.width


def split_routes(config: DecoderConfig, routes: jax.Array) -> jax.Array:
    """Splits the experts of tokens by layer, [B, T, L' k] -> [L', B, T, k]."""
    assert config.experts is not None
    split = routes.reshape(*routes.shape[:-1], -1, config.experts.per_token)
    return jnp.moveaxis(split, -2, 0)
