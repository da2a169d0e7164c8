"""Checksums of checkpoints: of arrays, whatever their sharding, and of JSON values."""

import hashlib
import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def checksum(tree: Any) -> str:
    """Returns a checksum of arrays, the same for every sharding.

    It is computed on the device. It sees every change of one element, and any other change with a
    probability of 1 - 2^-32.
    """
    # One transfer for all sums: a wait for each array would stop the device often.
    sums = jax.device_get(_leaf_sums([x for x in jax.tree.leaves(tree) if np.size(x)]))
    return hashlib.sha256(np.asarray(sums, np.uint32).tobytes()).hexdigest()[:16]


@jax.jit
def _leaf_sums(leaves: list[jax.Array]) -> list[jax.Array]:
    """Sums the bits of each array's elements modulo 2^32, each mixed with its index.

    The mixing is MurmurHash3's finaliser.
    """
    # Integer sums modulo 2^32 are the same in any order, so every sharding gives the same number; a
    # sum of floats would depend on it. 0x9E3779B9 is 2^32 divided by the golden ratio: indices that
    # are neighbours differ in many bits.
    sums = []
    for x in map(jnp.asarray, leaves):
        # bitcast_convert_type takes no bool.
        if x.dtype == bool:
            x = x.astype(jnp.uint8)
        # Bits, not values: NaN, -0.0 and the last digit count.
        mixed = jax.lax.bitcast_convert_type(x, f"uint{8 * x.dtype.itemsize}").astype(jnp.uint32)
        stride = 1
        for axis in reversed(range(x.ndim)):
            # The index of an element in the whole array, axis by axis: a flat iota would need a
            # reshape, which moves data between shards. Products wrap modulo 2^32.
            index = jax.lax.broadcasted_iota(jnp.uint32, x.shape, axis)
            mixed += index * np.uint32(stride * 0x9E3779B9 % 2**32)
            stride *= x.shape[axis]
        mixed = (mixed ^ (mixed >> 16)) * np.uint32(0x85EBCA6B)
        mixed = (mixed ^ (mixed >> 13)) * np.uint32(0xC2B2AE35)
        sums.append((mixed ^ (mixed >> 16)).sum(dtype=jnp.uint32))
    return sums


def digest(content: Any) -> str:
    """Returns a checksum of JSON values."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
