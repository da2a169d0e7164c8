"""The engine of a run, as its config describes it."""

import os
import secrets
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from gigpo_jax.errors import InputError
from gigpo_jax.models.tokenizer import Tokenizer
from gigpo_jax.policy import Policy, model_folder
from gigpo_jax.run import partition, report
from gigpo_jax.run.memory import engine_tensor
from gigpo_jax.sampling.jax_engine import EngineSettings, JaxEngine
from gigpo_jax.sampling.placement import mesh_of
from gigpo_jax.sampling.vllm import launch
from gigpo_jax.sampling.vllm.protocol import Limits
from gigpo_jax.sampling.vllm.weight_store import WeightStore
from gigpo_jax.sampling.vllm.worker.extension import tokenizer_fingerprint

PROBE_TEXT = "you are in the middle of a room. looking quickly around you, you see a desk 1, a drawer 1 and a shelf 1."
PROBE_TOKENS = 64


def make_engine(config: ConfigDict, policy: Policy, params: Any, *, version: int, folder: Path) -> Any:
    """Makes the engine `engine.name`, ready to sample; servers that it starts write their logs to `folder`.

    Raises:
      InputError: servers or what they need are missing, or they serve something else.
    """
    if config.engine.name == "vllm":
        return _vllm_engine(config, policy, params, version, folder)
    mesh = mesh_of(params)
    settings = engine_settings(config, 1 if mesh is None else engine_tensor(config, policy.config, mesh))
    made = JaxEngine(
        policy.config,
        params,
        replace(settings, devices=tuple(partition.split_devices(config)[1])),
        tokenizer=policy.tokenizer,
        version=version,
    )
    made.warmup()
    return made


def engine_settings(config: ConfigDict, tensor: int) -> EngineSettings:
    """The shapes of the in-process engine of a config; `tensor` as from `memory.engine_tensor`."""
    engine = config.engine
    return EngineSettings(
        slots=engine.slots,
        max_length=max_length(config),
        prefill_buckets=tuple(engine.prefill_buckets),
        prefill_rows=tuple(engine.prefill_rows),
        prefill_chunk=engine.prefill_chunk,
        decode_steps=engine.decode_steps,
        dtype=jnp.dtype(engine.dtype),
        tensor=tensor,
    )


def _vllm_engine(config: ConfigDict, policy: Policy, params: Any, version: int, folder: Path) -> Any:
    try:
        from gigpo_jax.sampling.vllm.engine import VllmEngine, VllmSettings
    except ModuleNotFoundError as err:  # aiohttp is an optional dependency
        raise InputError(
            f"config.engine.name='vllm': needs the package {err.name}; pip install 'gigpo_jax[vllm]'"
        ) from err
    servers, key = config.engine.vllm, os.environ.get("VLLM_API_KEY", "")
    urls = urls_of_host(servers.urls, jax.process_index(), jax.process_count())
    key = key if key or urls else secrets.token_urlsafe(24)
    store = WeightStore(servers.weights_dir)
    try:
        settings = VllmSettings(
            urls=urls,
            processes=() if urls else _processes(config, store.folder, folder, key),
            key=key,
            dtype=config.engine.dtype,
            max_length=max_length(config),
            tokenizer=tokenizer_fingerprint(
                (model_folder(config.model.path, config.model.revision) / "tokenizer.json").read_bytes()
            ),
            probe=probe_tokens(policy.tokenizer, max_length(config)),
            base=policy.base,
            limits=Limits(
                start_s=servers.start_timeout_s,
                connect_s=servers.connect_timeout_s,
                request_s=servers.request_timeout_s,
                push_s=servers.push_timeout_s,
                restarts=servers.restarts,
            ),
        )
        return VllmEngine(
            policy.config,
            params,
            settings=settings,
            store=store,
            tokenizer=policy.tokenizer,
            version=version,
            say=report.say,
        )
    except BaseException:
        store.close()
        raise


def _processes(config: ConfigDict, weights_dir: Path, folder: Path, key: str) -> tuple[launch.ServerProcess, ...]:
    servers = config.engine.vllm
    plan = launch.LaunchPlan(
        python=Path(os.path.abspath(servers.python)),  # not resolved: a venv's interpreter is a link to another one
        model=model_folder(config.model.path, config.model.revision),
        dtype=config.engine.dtype,
        max_length=max_length(config),
        sequences=config.engine.slots,
        weights_dir=weights_dir,
        folder=folder,
        gpu=launch.has_gpu(),
        cache_gib=servers.cache_gib,
        gpu_memory_fraction=servers.gpu_memory_fraction,
        lora_rank=config.model.lora.rank,
        arguments=tuple(shlex.split(servers.args)),
    )
    launch.check_plan(plan, servers.servers)
    report.say(f"starting {servers.servers} vLLM server(s), about a minute; logs: {folder}")
    return tuple(launch.ServerProcess(plan, port, key) for port in launch.free_ports(servers.servers))


def max_length(config: ConfigDict) -> int:
    """Tokens of the longest prompt and response together."""
    return config.sampling.max_prompt_tokens + config.sampling.max_response_tokens


def urls_of_host(urls: str, host: int, hosts: int) -> tuple[str, ...]:
    """The servers of `engine.vllm.urls` that a host uses, at least one; each server belongs to one host."""
    every = tuple(url.strip().rstrip("/") for url in urls.split(",") if url.strip())
    if every and len(every) < hosts:
        raise InputError(
            f"config.engine.vllm.urls={urls!r}: {len(every)} servers for {hosts} hosts; each needs one of its own"
        )
    return every[host::hosts]


def probe_tokens(tokenizer: Tokenizer, limit: int) -> tuple[int, ...]:
    """A prompt whose log-probabilities verify a push, at most `limit` - 1 tokens."""
    return tuple(tokenizer.encode_chat(PROBE_TEXT))[: min(PROBE_TOKENS, limit - 1)]
