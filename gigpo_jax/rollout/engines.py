"""The engine of a run, as its config describes it."""

import functools
import os
import secrets
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from gigpo_jax.core.errors import InputError
from gigpo_jax.devices.memory import server_tensor
from gigpo_jax.devices.mesh import learner_mesh, split_devices
from gigpo_jax.engines.jax.jax_engine import EngineSettings, JaxEngine
from gigpo_jax.engines.jax.placement import parameter_mesh
from gigpo_jax.engines.remote.probe import PROBE_TOKENS
from gigpo_jax.engines.remote.protocol import Limits, generate_request
from gigpo_jax.engines.remote.weight_store import WeightStore
from gigpo_jax.engines.vllm import launch
from gigpo_jax.engines.vllm.worker.extension import tokenizer_fingerprint
from gigpo_jax.models.decoder_config import DecoderConfig
from gigpo_jax.models.files.hub import model_folder
from gigpo_jax.models.text.tokenizer import Tokenizer
from gigpo_jax.policy import Policy
from gigpo_jax.run import report
from gigpo_jax.run.progress import show_stage

# Its log-probabilities at the server show whether a weight update has arrived whole.
PROBE_TEXT = (
    "you are in the middle of a room. looking quickly around you, you see a desk 1, a drawer 1 "
    "and a shelf 1."
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
    if config.engine.name != "jax":
        return _make_remote_engine(config, policy, params, version, folder)
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
      tensor: Number of devices that split the weights, see `memory.engine_tensor`.
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


def _make_remote_engine(
    config: ConfigDict, policy: Policy, params: Any, version: int, folder: Path
) -> Any:
    is_vllm = config.engine.name == "vllm"
    try:
        from gigpo_jax.engines.jax_server.client import KEY, JaxServer, jax_request
        from gigpo_jax.engines.remote.engine import RemoteEngine, RemoteSettings
        from gigpo_jax.engines.remote.server import Server
        from gigpo_jax.engines.vllm.server import VllmServer
    except ModuleNotFoundError as err:  # aiohttp is an optional dependency
        raise InputError(
            f"needs the package {err.name}",
            key="config.engine.name",
            value=repr(config.engine.name),
            fix="pip install 'gigpo_jax[vllm]'",
        ) from err
    servers = config.engine
    urls = urls_of_host(servers.urls, jax.process_index(), jax.process_count())
    key = os.environ.get(VllmServer.key_name if is_vllm else KEY, "")
    if not key and not urls:
        key = secrets.token_urlsafe(24)  # servers that this process starts are closed to others
    store = WeightStore(servers.weights_dir)
    pieces = None if servers.weights_dir else store.folder
    device = jax.devices()[0].device_kind if config.rl.old_logprobs == "engine" else ""
    server: Callable[..., Server] = functools.partial(VllmServer, inflight=config.train.inflight)
    if not is_vllm:
        server = functools.partial(JaxServer, folder=pieces, device=device)
    try:
        settings = RemoteSettings(
            server=functools.partial(server, keeps_entropies=servers.entropies),
            make_request=generate_request if is_vllm else jax_request,
            urls=urls,
            processes=() if urls else _plan_processes(config, store.folder, folder, key),
            key=key,
            dtype=servers.dtype,
            max_length=max_length(config),
            tokenizer=model_fingerprint(config),
            probe=probe_tokens(policy.tokenizer, max_length(config)),
            base=policy.base,
            inflight=config.train.inflight,
            limits=Limits(
                start_s=servers.vllm.start_timeout_s,
                connect_s=servers.connect_timeout_s,
                request_s=servers.request_timeout_s,
                push_s=servers.push_timeout_s,
                restarts=servers.vllm.restarts,
            ),
        )
        with show_stage("connecting to the servers"):
            return RemoteEngine(
                policy.config,
                params,
                settings=settings,
                store=store,
                tokenizer=policy.tokenizer,
                version=version,
                say=report.say,
            )
    # Also at Ctrl-C: the folder is usually in memory, and weights in it would stay there.
    except BaseException:
        store.close()
        raise


def model_fingerprint(config: ConfigDict) -> str:
    """Fingerprint of the tokenizer of `model.path`."""
    file = model_folder(config.model.path, config.model.revision) / "tokenizer.json"
    return tokenizer_fingerprint(file.read_bytes())


def _plan_processes(
    config: ConfigDict, weights_dir: Path, folder: Path, key: str
) -> tuple[launch.ServerProcess, ...]:
    servers = config.engine.vllm
    plan = launch.LaunchPlan(
        # Not resolved: a virtual environment's interpreter is a link to another one.
        python=Path(os.path.abspath(servers.python)),
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
    # Before the first server starts: a mistake would otherwise show after a minute.
    launch.check_plan(plan, servers.servers)
    report.say(f"starting {servers.servers} vLLM server(s), about a minute; logs: {folder}")
    return tuple(
        launch.ServerProcess(plan, port, key) for port in launch.free_ports(servers.servers)
    )


def max_length(config: ConfigDict) -> int:
    """Number of tokens of the longest prompt and response together."""
    return config.sampling.max_prompt_tokens + config.sampling.max_response_tokens


def urls_of_host(urls: str, host: int, hosts: int) -> tuple[str, ...]:
    """The servers of `engine.urls` that a host uses.

    Each server belongs to one host.
    """
    all_urls = tuple(url.strip().rstrip("/") for url in urls.split(",") if url.strip())
    if all_urls and len(all_urls) < hosts:
        raise InputError(
            f"{len(all_urls)} servers for {hosts} hosts",
            key="config.engine.urls",
            value=repr(urls),
            fix="give each host one of its own",
        )
    # In turns: the hosts' numbers of servers differ by at most one.
    return all_urls[host::hosts]


def probe_tokens(tokenizer: Tokenizer, limit: int) -> tuple[int, ...]:
    """A prompt whose log-probabilities verify a push.

    It has at most `limit` - 1 tokens.
    """
    # One less: a server samples at least one token behind a prompt.
    return tuple(tokenizer.encode_chat(PROBE_TEXT))[: min(PROBE_TOKENS, limit - 1)]
