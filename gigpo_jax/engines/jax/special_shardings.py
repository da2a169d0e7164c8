"""Shardings of a cache with windows, states or experts of tokens."""

from dataclasses import replace
from typing import Any

from gigpo_jax.engines.jax.placement import SLOTS, Placement
from gigpo_jax.models.cache import KVCache
from gigpo_jax.models.decoder_config import DecoderConfig
from gigpo_jax.models.routes import ROUTE_ORDER


def special_shardings(
    config: DecoderConfig,
    placement: Placement,
    entries: Any,
    *,
    keeps_routes: bool,
    keeps_checkpoints: bool,
) -> KVCache:
    """The shardings of a cache's arrays; `entries` is the sharding of keys and values."""
    windows = KVCache(entries, entries) if config.num_window_layers else None
    shardings = KVCache(entries, entries, windows=windows)
    if keeps_routes:
        # The experts of tokens, [L', S, 1, C, k].
        routes = placement.order_cache(placement.sharding(None, SLOTS), ROUTE_ORDER)
        shardings = replace(shardings, routes=routes)
    if config.delta is not None:
        # A state is whole on each device of a partition, as its layer's weights are.
        states = placement.sharding(None, SLOTS)
        checkpoints = states if keeps_checkpoints else None
        shardings = replace(shardings, states=states, checkpoints=checkpoints)
    return shardings
