"""Engines of other processes: vLLM, or the engine of this package on another machine."""

import functools
import os
import secrets
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
from ml_collections import ConfigDict

from gigpo_jax.core.errors import InputError
from gigpo_jax.core.optional import optional_imports
from gigpo_jax.engines.remote.probe import PROBE_TOKENS
from gigpo_jax.engines.remote.protocol import Limits, generate_request
from gigpo_jax.engines.remote.weight_store import WeightStore
from gigpo_jax.engines.vllm import launch
from gigpo_jax.engines.vllm.worker.extension import tokenizer_fingerprint
from gigpo_jax.models.files.folders import model_folder
from gigpo_jax.models.text.tokenizer import Tokenizer
from gigpo_jax.policy import Policy, longest_text
from gigpo_jax.run import report
from gigpo_jax.run.progress import show_stage

if TYPE_CHECKING:  # they need aiohttp, an optional dependency
    from gigpo_jax.engines.remote.engine import RemoteSettings
    from gigpo_jax.engines.remote.server import Server

# Its log-probabilities at the server show whether a weight update has arrived whole.
PROBE_TEXT = (
    "you are in the middle of a room. looking quickly around you, you see a desk 1, a drawer 1 "
    "and a shelf 1."
)


def make_remote_engine(
    config: ConfigDict, policy: Policy, params: Any, *, version: int, folder: Path
) -> Any:
    """Connects to servers, or starts them; arguments as for `engines.make_engine`."""
    name = config.engine.name
    with optional_imports("vllm", key="config.engine.name", value=repr(name)):
        from gigpo_jax.engines.remote.engine import RemoteEngine
    urls = urls_of_host(config.engine.urls, jax.process_index(), jax.process_count())
    store = WeightStore(config.engine.weights_dir)
    try:
        settings = _describe_servers(config, policy, urls, store.folder, folder)
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


def _describe_servers(
    config: ConfigDict, policy: Policy, urls: tuple[str, ...], weights_dir: Path, folder: Path
) -> "RemoteSettings":
    """Returns what the engine has to know of the servers; without `urls` it starts them."""
    from gigpo_jax.engines.jax_server.client import KEY, JaxServer, jax_request
    from gigpo_jax.engines.remote.engine import RemoteSettings
    from gigpo_jax.engines.vllm.server import VllmServer

    servers = config.engine
    is_vllm = servers.name == "vllm"
    key = os.environ.get(VllmServer.key_name if is_vllm else KEY, "")
    if not key and not urls:
        key = secrets.token_urlsafe(24)  # servers that this process starts are closed to others
    server: Callable[..., Server] = functools.partial(
        VllmServer, inflight=config.train.inflight, num_tokens=policy.config.num_tokens
    )
    if not is_vllm:
        pieces = None if servers.weights_dir else weights_dir
        device = jax.devices()[0].device_kind if config.rl.old_logprobs == "engine" else ""
        server = functools.partial(JaxServer, folder=pieces, device=device)
    return RemoteSettings(
        server=functools.partial(server, keeps_entropies=servers.entropies),
        make_request=generate_request if is_vllm else jax_request,
        urls=urls,
        processes=() if urls else _make_processes(config, weights_dir, folder, key),
        key=key,
        dtype=servers.dtype,
        max_length=longest_text(config),
        tokenizer=model_fingerprint(config),
        probe=probe_tokens(policy.tokenizer, longest_text(config)),
        base=policy.base,
        inflight=config.train.inflight,
        limits=Limits(
            start_s=launch.START_S,
            connect_s=servers.connect_timeout_s,
            request_s=servers.request_timeout_s,
            push_s=servers.request_timeout_s,
            restarts=launch.RESTARTS,
        ),
    )


def model_fingerprint(config: ConfigDict) -> str:
    """Fingerprint of the tokenizer of `model.path`."""
    file = model_folder(config.model.path, config.model.revision) / "tokenizer.json"
    return tokenizer_fingerprint(file.read_bytes())


def _make_processes(
    config: ConfigDict, weights_dir: Path, folder: Path, key: str
) -> tuple[launch.ServerProcess, ...]:
    servers = config.engine.vllm
    settings = launch.VllmSettings(
        # Not resolved: a virtual environment's interpreter is a link to another one.
        python=Path(os.path.abspath(servers.python)),
        model=model_folder(config.model.path, config.model.revision),
        dtype=config.engine.dtype,
        max_length=longest_text(config),
        sequences=config.engine.slots,
        weights_dir=weights_dir,
        folder=folder,
        gpu=launch.has_gpu(),
        cache_gib=launch.cache_gib(),
        lora_rank=config.model.lora.rank,
        arguments=tuple(shlex.split(servers.args)),
    )
    # Before the first server starts: a mistake would otherwise show after a minute.
    launch.check_settings(settings, servers.servers)
    report.say(f"starting {servers.servers} vLLM server(s), about a minute; logs: {folder}")
    return tuple(
        launch.ServerProcess(settings, port, key) for port in launch.free_ports(servers.servers)
    )


def urls_of_host(urls: str, host: int, hosts: int) -> tuple[str, ...]:
    """Returns the servers of `engine.urls` that a host uses; each belongs to one host."""
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
    """Returns a prompt of at most `limit` - 1 tokens whose log-probabilities verify a push."""
    # One less: a server samples at least one token behind a prompt.
    return tuple(tokenizer.encode_chat(PROBE_TEXT))[: min(PROBE_TOKENS, limit - 1)]
