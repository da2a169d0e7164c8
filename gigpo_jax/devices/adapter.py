"""The adapter of a run (model.lora): its checks, its start and its shardings."""

from typing import Any

import jax
from ml_collections import ConfigDict

from gigpo_jax.core.errors import InputError
from gigpo_jax.devices.mesh import shard_parameters
from gigpo_jax.models import lora
from gigpo_jax.models.decoder_config import DecoderConfig
from gigpo_jax.models.files.adapter_file import load_adapter
from gigpo_jax.models.linear_names import MLP_LINEARS, TARGETS


def check_expert_adapter(config: ConfigDict, shape: DecoderConfig) -> None:
    """Raises InputError for an adapter that a model with experts cannot have."""
    settings = config.model.lora
    # PEFT names single linear layers; in transformers an expert is a slice of an array.
    targets = [name for name in settings.targets if TARGETS[name] in MLP_LINEARS]
    if targets:
        raise InputError(
            f"experts have no adapters ({', '.join(targets)})",
            key="config.model.lora.targets",
            value=repr(tuple(settings.targets)),
            fix="name linear layers of attention alone: q_proj, k_proj, v_proj, o_proj",
        )
    if len(shape.layer_spans) > 1:
        raise InputError(
            "adapters need experts in all layers or in none",
            key="config.model.lora.rank",
            value=settings.rank,
            fix="use 0",
        )


def start_adapter(
    config: ConfigDict, shape: DecoderConfig, mesh: jax.sharding.Mesh, adapter: lora.LoraConfig
) -> Any:
    """Returns a run's starting adapter.

    The adapter is read from `model.lora.path` or drawn from the seed.

    Raises:
      InputError: its rank is not low, or the folder that it is read from holds no such adapter.
    """
    if adapter.rank > shape.hidden_size:
        raise InputError(
            f"the model is only {shape.hidden_size} wide",
            key="config.model.lora.rank",
            value=adapter.rank,
            fix="use a lower rank, or 0 to train all parameters",
        )
    shardings = adapter_shardings(shape, adapter, mesh)
    if config.model.lora.path:
        pairs = load_adapter(config.model.lora.path, shape, adapter)
        return jax.device_put(pairs, shardings)

    # In one program with shardings: no device holds the whole tree.
    init = jax.jit(lambda key: lora.init_adapter(shape, adapter, key), out_shardings=shardings)
    # 1: other random numbers than those of `fresh_policy`, which draws from the same seed.
    return init(jax.random.fold_in(jax.random.key(config.seed), 1))


def adapter_shardings(
    shape: DecoderConfig, adapter: lora.LoraConfig, mesh: jax.sharding.Mesh
) -> Any:
    """Returns the sharding of each array of an adapter: as the outer axes of its kernel."""
    axes = lora.adapter_axes(shape, adapter)
    return shard_parameters(mesh, axes, lora.abstract_adapter(shape, adapter))
