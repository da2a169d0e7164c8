"""Makes the engine of a run from its config."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
from ml_collections import ConfigDict

from gigpo_jax.core.references import ReferenceTable
from gigpo_jax.devices.mesh import split_devices
from gigpo_jax.engines.jax.jax_engine import EngineSettings, JaxEngine
from gigpo_jax.engines.jax.placement import parameter_mesh
from gigpo_jax.policy import Policy, longest_text
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
        tensor = policy.engine_split_size or config.engine.tensor or mesh.shape["tensor"]
    settings = engine_settings(config, tensor)
    engine = JaxEngine(
        policy.config,
        params,
        replace(settings, devices=tuple(split_devices(config)[1])),
        tokenizer=policy.tokenizer,
        version=version,
    )
    with show_stage("compiling the engine's programs"):
        # Here and not at the first request: the first rollout's time is then without compilation.
        engine.warmup()
    return engine


def engine_settings(config: ConfigDict, tensor: int) -> EngineSettings:
    """Settings of the in-process engine.

    Args:
      config: Config of the run.
      tensor: Number of devices that split the weights, see `engine_split.engine_split_size`.
    """
    engine = config.engine
    return EngineSettings(
        slots=engine.slots,
        max_length=longest_text(config),
        prefill_buckets=tuple(engine.prefill_buckets),
        prefill_rows=tuple(engine.prefill_rows),
        prefill_chunk=engine.prefill_chunk,
        keep_responses=engine.keep_responses,
        decode_steps=engine.decode_steps,
        dtype=jnp.dtype(engine.dtype),
        tensor=tensor,
        keeps_routes=config.model.replay_routes,
        keeps_entropies=config.engine.entropies,
        cuts_tokens=config.sampling.top_p < 1 or config.sampling.top_k > 0,
    )
