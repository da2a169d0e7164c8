"""The engine of a run, as its config describes it."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from gigpo_jax.core.references import ReferenceTable
from gigpo_jax.devices.engine_split import server_tensor
from gigpo_jax.devices.mesh import learner_mesh, split_devices
from gigpo_jax.engines.jax.jax_engine import EngineSettings, JaxEngine
from gigpo_jax.engines.jax.placement import parameter_mesh
from gigpo_jax.models.decoder_config import DecoderConfig
from gigpo_jax.policy import Policy
from gigpo_jax.run.progress import show_stage

# The values of `engine.name`.
ENGINES: ReferenceTable[Callable[..., Any]] = ReferenceTable(
    {
        "jax": "gigpo_jax.rollout.engines:make_jax_engine",
        "jax_server": "gigpo_jax.rollout.remote_engines:make_remote_engine",
        "vllm": "gigpo_jax.rollout.remote_engines:make_remote_engine",
    }
)


def make_engine(
    config: ConfigDict, policy: Policy, params: Any, *, version: int, folder: Path
) -> Any:
    """Makes the engine `engine.name`, ready to sample.

    Args:
      config: Config of the run.
      policy: Policy that samples.
      params: Parameters of the policy as a whole, see `Policy.whole`.
      version: Version of these parameters.
      folder: Folder for the logs of servers that the engine starts.

    Raises:
      InputError: a server or a package is missing, or a server has another model.
    """
    return ENGINES[config.engine.name](config, policy, params, version=version, folder=folder)


def make_jax_engine(
    config: ConfigDict, policy: Policy, params: Any, *, version: int, folder: Path
) -> JaxEngine:
    """Makes the engine in this process; arguments as for `make_engine`."""
    del folder
    mesh = parameter_mesh(params)
    # Parameters on one device have no mesh.
    tensor = 1
    if mesh is not None:
        tensor = policy.engine_tensor or config.engine.tensor or mesh.shape["tensor"]
    settings = engine_settings(config, tensor)
    engine = JaxEngine(
        policy.config,
        params,
        replace(settings, devices=tuple(split_devices(config)[1])),
        tokenizer=policy.tokenizer,
        version=version,
    )
    with show_stage("compiling the engine's programs"):
        # Here and not at the first request: the time of the first rollout is then
        # that of a rollout.
        engine.warmup()
    return engine


def server_config(
    config: ConfigDict,
    shape: DecoderConfig,
    devices: Sequence[jax.Device] | None = None,
    limit: int | None = None,
) -> ConfigDict:
    """The config of a learner's engine server.

    Args:
      config: Resolved config.
      shape: Shape of the model.
      devices: Devices of the server; None: all of this process.
      limit: Bytes of one device; None: what the devices report.
    """
    config = config.copy_and_resolve_references()
    # Nothing is trained: weights have the engine's dtype, and no rollout waits for an update.
    config.engine.name = "jax"
    config.engine.devices = 0
    config.train.max_staleness = 0
    config.model.param_dtype = config.engine.dtype
    # The weights are loaded in the places that the engine reads them from. Split otherwise, they
    # would be in memory beside the engine's copy of them, with an adapter all the time.
    config.mesh.update({"data": -1, "fsdp": 1})
    config.mesh.tensor = server_tensor(config, shape, learner_mesh(config, devices), limit)
    return config


def engine_settings(config: ConfigDict, tensor: int) -> EngineSettings:
    """Settings of the in-process engine.

    Args:
      config: Config of the run.
      tensor: Number of devices that split the weights, see `engine_split.engine_tensor`.
    """
    engine = config.engine
    return EngineSettings(
        slots=engine.slots,
        max_length=max_length(config),
        prefill_buckets=tuple(engine.prefill_buckets),
        prefill_rows=tuple(engine.prefill_rows),
        prefill_chunk=engine.prefill_chunk,
        keep_responses=engine.keep_responses,
        decode_steps=engine.decode_steps,
        dtype=jnp.dtype(engine.dtype),
        tensor=tensor,
        keeps_routes=config.model.replay_routes,
        keeps_entropies=config.engine.entropies,
    )


def max_length(config: ConfigDict) -> int:
    """Number of tokens of the longest prompt and response together."""
    return config.sampling.max_prompt_tokens + config.sampling.max_response_tokens
