"""The memory estimate of a run, checked before anything is allocated."""

import math
import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from gigpo_jax.devices.exchange import all_hosts
from gigpo_jax.devices.memory_advice import refuse_run
from gigpo_jax.models.cache import cache_length
from gigpo_jax.models.decoder import DecoderConfig, abstract_params, param_count

if TYPE_CHECKING:
    from gigpo_jax.models.vision.vision_config import VisionConfig

GIB = 2.0**30
MIB = 2**20
UNKNOWN = (2**31 - 1) * MIB  # hosts exchange MiB in 32 bits
# Parts of an estimate that are in memory during rollouts, and during updates.
ENGINE = ("engine's weights", "KV cache")
REPLAYED = "replayed experts"  # of all minibatches
UPDATE = ("gradients", "activations", REPLAYED)
# Parts that a process without updates does not have.
LEARNER = (*UPDATE, "optimizer", "reference policy", "older policies")
NO_SIGNALS: Mapping[str, int] = MappingProxyType({})


def memory_estimate(
    config: ConfigDict,
    shape: DecoderConfig,
    devices: int,
    hosts: int = 1,
    tensor: int = 0,
    platform: str = "tpu",
    signals: Mapping[str, int] = NO_SIGNALS,
) -> dict[str, float]:
    """Estimates the bytes on each device by purpose.

    XLA's temporaries and fragmentation are not counted. Parameters are split over `fsdp` and
    `tensor`, rows over `data` and `fsdp`; for the engine see `engine_estimate`. With an adapter,
    gradients, optimizer, reference policy and older policies have the adapter's size. Pictures are
    assumed to fill the rows of an update and the prompts of a prefill.

    Args:
      config, shape: Resolved config, and shape of the model.
      devices: Number of devices in the mesh, over all hosts.
      hosts: Number of hosts, with equally many devices each.
      tensor: Number of devices that split the engine's weights; 0: `mesh.tensor`.
      platform: jax's name of the devices' platform. On "cpu" a bfloat16 engine has its own
        weights, on "gpu" XLA keeps more of the output layer.
      signals: Bytes of the learner's signals, see `policy.SignalBytes`.
    """
    mesh = _mesh_sizes(config, devices)
    parameter_shards = mesh["fsdp"] * mesh["tensor"]
    groups = _parameter_groups(config, shape)
    frozen_bytes = sum(count * jnp.dtype(dtype).itemsize for dtype, count in groups[:-1])
    trained_count = groups[-1][1]
    trained_shards: float = parameter_shards
    if config.model.lora.rank:
        from gigpo_jax.devices.feature_memory import adapter_shards

        trained_shards = adapter_shards(config, shape, mesh)
    policy_bytes = trained_bytes(config, shape) / trained_shards
    row_shards = mesh["data"] * mesh["fsdp"]
    # Rounded up: the fullest device decides.
    row_count = -(-config.batch.rows // row_shards)
    engine = engine_estimate(config, shape, devices, hosts, tensor, platform)
    if config.engine.devices:
        # The learner's devices gather one version of the weights, then send it.
        one_version = engine["engine's weights"] / max(1, config.train.max_staleness)
        engine = {"engine's weights": one_version, "KV cache": 0}
    estimate = {
        "parameters": frozen_bytes / parameter_shards + policy_bytes,
        # Accumulated in float32, whatever type the parameters have.
        "gradients": trained_count * 4 / trained_shards,
        "optimizer": _optimizer_bytes(config, shape, trained_count) / trained_shards,
        "reference policy": policy_bytes if config.rl.kl_coef > 0 else 0,
        **{
            name: size / (row_shards if name == REPLAYED else parameter_shards)
            for name, size in signals.items()
        },
        "older policies": policy_bytes * count_older_policies(config),
        **engine,
        "activations": _activation_bytes(config, shape, row_count, parameter_shards, platform),
        "activations of the vision tower": 0,
    }
    if shape.vision:
        from gigpo_jax.devices.feature_memory import tower_bytes

        estimate["activations of the vision tower"] = tower_bytes(
            config, shape.vision, shape.hidden_size, row_count, _kept_numbers
        )
    return estimate


def engine_estimate(
    config: ConfigDict,
    shape: DecoderConfig,
    devices: int,
    hosts: int = 1,
    tensor: int = 0,
    platform: str = "tpu",
) -> dict[str, float]:
    """Estimates the in-process engine's bytes on each device.

    The devices are the engine's; arguments as for `memory_estimate`. The engine copies parameters
    that are on other devices, split over `fsdp`, of another dtype, or bfloat16 on CPUs: once for
    each version of the weights that waiting rollouts sample from. Its cache is split over its
    devices of a host.
    """
    if config.engine.name != "jax":
        return dict.fromkeys(ENGINE, 0.0)
    mesh = _mesh_sizes(config, devices)
    tensor = tensor or mesh["tensor"]
    own_devices = config.engine.devices
    dtype = jnp.dtype(config.engine.dtype)
    # Otherwise the engine uses the learner's arrays of its dtype, which cost nothing more.
    copies_all = (
        own_devices > 0
        or mesh["fsdp"] > 1
        or tensor > mesh["tensor"]
        or (platform == "cpu" and dtype == jnp.bfloat16)
    )
    copied_count = sum(
        count
        for group_dtype, count in _parameter_groups(config, shape)
        if copies_all or jnp.dtype(group_dtype) != dtype
    )
    slot_tokens = cache_length(
        config.sampling.max_prompt_tokens + config.sampling.max_response_tokens,
        config.engine.prefill_chunk,
    )
    # Keys and values of a layer, then of all that see whole texts.
    layer_bytes = 2 * shape.num_kv_heads * shape.head_dim * dtype.itemsize
    depth = shape.num_layers - shape.num_delta_layers - shape.num_window_layers
    cache_bytes = depth * layer_bytes * config.engine.slots * slot_tokens
    if shape.layer_types or shape.experts is not None:
        from gigpo_jax.devices.feature_memory import slot_bytes

        cache_bytes += config.engine.slots * slot_bytes(config, shape, slot_tokens, layer_bytes)
    versions = max(1, config.train.max_staleness)
    return {
        "engine's weights": copied_count * dtype.itemsize / tensor * versions,
        # Slots are spread over the devices of a host, heads over those that share the weights: in
        # both ways a device has its part.
        "KV cache": cache_bytes / (own_devices or devices / hosts),
    }


def count_older_policies(config: ConfigDict) -> int:
    """Number of older policies that a learner keeps for rollouts."""
    # In flight nothing is played again: tokens have whatever weights there were.
    return 0 if config.train.inflight else config.train.max_staleness


def _mesh_sizes(config: ConfigDict, devices: int) -> dict[str, int]:
    """Number of devices along each axis of the mesh."""
    fixed = math.prod(size for size in config.mesh.values() if size != -1)
    return {name: size if size != -1 else devices // fixed for name, size in config.mesh.items()}


def _parameter_groups(config: ConfigDict, shape: DecoderConfig) -> list[tuple[str, int]]:
    """Returns dtype and number of parameters of the model, and of an adapter if there is one.

    The last of them is trained.
    """
    groups = [(config.model.param_dtype, param_count(shape))]
    if config.model.lora.rank:
        from gigpo_jax.models.lora import LoraConfig, adapter_param_count

        adapter = LoraConfig.from_settings(config.model.lora)
        groups.append(("float32", adapter_param_count(shape, adapter)))
    return groups


def trained_bytes(config: ConfigDict, shape: DecoderConfig) -> int:
    """Returns the bytes of the trained parameters, over all devices."""
    dtype, count = _parameter_groups(config, shape)[-1]
    return count * jnp.dtype(dtype).itemsize


def _optimizer_bytes(config: ConfigDict, shape: DecoderConfig, trained_count: int) -> int:
    """Returns the bytes of the optimizer's moments."""
    second_moment_count = trained_count
    if config.optim.name == "muon":
        from gigpo_jax.rl.muon import count_numbers

        # Muon has no second moment.
        second_moment_count -= count_numbers(abstract_params(shape))
    first_moment_bytes = trained_count * jnp.dtype(config.optim.moment_dtype).itemsize
    return first_moment_bytes + 4 * second_moment_count


def _activation_bytes(
    config: ConfigDict, shape: DecoderConfig, row_count: int, shards: int, platform: str
) -> float:
    """Returns the bytes of activations kept for the gradient, and of what is computed at once."""
    dtype = jnp.dtype(config.model.compute_dtype)
    tokens = row_count * config.batch.row_length
    layers = tokens * shape.num_layers * _kept_numbers(config.model.remat, shape) * dtype.itemsize
    chunk = min(config.batch.logprob_chunk, tokens)
    # Logits of a chunk and their gradient, both in float32.
    output = chunk * shape.vocab_size * 4 * 2
    if platform != "cpu" or shape.delta is not None:
        from gigpo_jax.devices.feature_memory import update_bytes

        return update_bytes(config, shape, tokens, shards, layers, output, platform)
    return layers + output


def _kept_numbers(remat: str, shape: "DecoderConfig | VisionConfig") -> int:
    """Returns how many numbers a layer keeps for the gradient of one token or patch."""
    width = shape.hidden_size
    inner = shape.intermediate_size
    if isinstance(shape, DecoderConfig) and shape.experts is not None:
        from gigpo_jax.devices.feature_memory import kept_with_experts

        return kept_with_experts(remat, shape, shape.experts)
    # A tower does not keep the result of attention.
    attention = shape.num_heads * shape.head_dim if isinstance(shape, DecoderConfig) else 0
    return {
        "offload": 0,
        "full": width,
        "attention": width + attention,
        "dots": 6 * width + 2 * inner,
        "none": 12 * width + 4 * inner,  # about
    }[remat]


def peak(config: ConfigDict, estimate: Mapping[str, float]) -> float:
    """Bytes of an estimate that are needed at once."""
    return sum(_parts_at_peak(config, estimate).values())


def _parts_at_peak(config: ConfigDict, estimate: Mapping[str, float]) -> dict[str, float]:
    """Returns the parts of an estimate that are needed at once.

    The engine has its memory during rollouts and gradients have theirs during updates, so only the
    larger counts. Both count if rollouts run during updates on the same devices.
    """
    if config.train.max_staleness and not config.engine.devices:
        return dict(estimate)
    engine_bytes = sum(estimate.get(name, 0) for name in ENGINE)
    update_bytes = sum(estimate.get(name, 0) for name in UPDATE)
    freed = UPDATE if engine_bytes > update_bytes else ENGINE
    return {name: size for name, size in estimate.items() if name not in freed}


def largest_estimate(
    config: ConfigDict,
    shape: DecoderConfig,
    devices: int,
    hosts: int,
    tensor: int,
    platform: str,
    signals: Mapping[str, int],
    trains: bool,
) -> dict[str, float]:
    """Returns the estimate of the learner's or of the engine's devices, whichever needs more."""
    learner = memory_estimate(config, shape, devices, hosts, tensor, platform, signals)
    if not trains:
        learner |= dict.fromkeys(LEARNER, 0.0)
    if not config.engine.devices:
        return learner
    engine = engine_estimate(config, shape, devices, hosts, tensor, platform)
    return max(learner, engine, key=lambda estimate: peak(config, estimate))


def check_memory(
    config: ConfigDict,
    shape: DecoderConfig,
    devices: int,
    hosts: int = 1,
    tensor: int = 0,
    limit: int | None = None,
    signals: Mapping[str, int] = NO_SIGNALS,
    *,
    trains: bool = True,
    platform: str = "tpu",
) -> None:
    """Refuses a run that cannot fit, by InputError.

    Args:
      config, shape, devices, hosts, tensor, signals, platform: Arguments of `memory_estimate`.
      limit: Bytes of one device; None: the smallest value that a device of any host reports, or no
        check if none reports any. Then all hosts must call this together.
      trains: Whether there are updates; False: `LEARNER` is not counted.
    """
    estimate = largest_estimate(config, shape, devices, hosts, tensor, platform, signals, trains)
    limit = limit or smallest_device_bytes()
    needed = _parts_at_peak(config, estimate)
    if limit is None or sum(needed.values()) <= limit:
        return
    raise refuse_run(config, estimate, needed, limit, count_older_policies(config))


def smallest_device_bytes() -> int | None:
    """Returns the smallest memory of a device of any host; None where none reports it.

    All hosts must have one estimate. CPU devices share the memory of their machine.
    """
    device = jax.local_devices()[0]
    if device.platform == "cpu":
        machine_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        local_bytes = machine_bytes // jax.local_device_count()
    else:
        # Some backends report no statistics.
        local_bytes = (device.memory_stats() or {}).get("bytes_limit", UNKNOWN)
    # The minimum of all hosts, so that each host decides the same: one that refuses alone would
    # leave the others waiting.
    smallest = int(all_hosts(np.array([local_bytes // MIB], np.int32)).min()) * MIB
    return smallest if smallest < UNKNOWN else None
