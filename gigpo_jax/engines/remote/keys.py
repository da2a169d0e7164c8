"""Config keys of runs whose engine is servers."""

from ml_collections import ConfigDict

from gigpo_jax.config.key_types import KeySet
from gigpo_jax.config.keys import declare, named_keys, value_of
from gigpo_jax.config.requirements import require
from gigpo_jax.core.settings import POSITIVE

LOOPBACK = {"127.0.0.1", "localhost", "[::1]"}
KEYS = named_keys(
    declare(
        "engine.urls",
        'running servers, as "http://a:8000,http://b:8000"; key in GIGPO_API_KEY or, for vllm, '
        'VLLM_API_KEY; "": the run starts some (vllm)',
        may_change=True,
    ),
    # For servers on other machines, which read weights from a file system faster.
    declare(
        "engine.weights_dir",
        'folder shared with the servers for new weights; "": over HTTP (jax_server), or a folder '
        "in memory (vllm)",
        may_change=True,
    ),
    # For clusters, where servers may start a quarter of an hour after the learner.
    declare(
        "engine.connect_timeout_s",
        "time limit for a server of urls to answer (again)",
        POSITIVE,
        may_change=True,
    ),
    # For long responses on slow devices, and for weights over a slow network.
    declare(
        "engine.request_timeout_s",
        "time limit for one response, also of the endpoint, and for a step of a weight update",
        POSITIVE,
        may_change=True,
    ),
)


def check(config: ConfigDict, trains: bool) -> None:
    """Checks what servers can do, and their addresses."""
    del trains
    if config.engine.name == "jax":
        reason = "needs engine.name=jax_server or vllm"
        require(not config.engine.urls, config, "engine.urls", reason)
        return
    limits = {"train.max_staleness": 1, "engine.devices": 0}
    if config.train.inflight:
        del limits["train.max_staleness"]
    for name, limit in limits.items():
        reason = "servers have devices of their own and the weights of one update"
        fix = f"at most {limit} with engine.name={config.engine.name}"
        require(value_of(config, name) <= limit, config, name, reason, fix)
    reason = "servers do not return the experts of a token"
    fix = "use engine.name=jax"
    require(not config.model.replay_routes, config, "model.replay_routes", reason, fix)
    reason = "servers take adapters of the decoder alone"
    require(not config.model.lora.vision, config, "model.lora.vision", reason, "leave it out")
    _check_servers(config)


def _check_servers(config: ConfigDict) -> None:
    engine = config.engine
    is_vllm = engine.name == "vllm"
    if not engine.urls:
        reason = "a run starts no servers of this kind"
        fix = "start gigpo engine, and name its address"
        require(is_vllm, config, "engine.urls", reason, fix)
        return
    require_urls(config, "engine.urls")
    hosts = {_host_of(url.strip()) for url in engine.urls.split(",")}
    reason = "vLLM servers on other machines take weights from a shared folder"
    fix = "name their --weights-dir (GIGPO_WEIGHTS_DIR)"
    is_reached = engine.weights_dir != "" or hosts <= LOOPBACK or not is_vllm
    require(is_reached, config, "engine.weights_dir", reason, fix)


def _host_of(url: str) -> str:
    address = url.partition("://")[2]
    host, _, port = address.rpartition(":")
    return host if port.isdigit() else address


def require_urls(config: ConfigDict, name: str) -> None:
    """Raises an InputError for texts in place of distinct URLs of servers."""
    urls = [url.strip() for url in value_of(config, name).split(",")]
    for url in urls:
        host = url.removeprefix("http://").removeprefix("https://")
        # Nothing after host and port: paths of requests are joined to it. Nothing secret either:
        # the config is saved and printed.
        is_url = host != url and host != "" and "@" not in host and not set(host) & set("/?# ")
        require(is_url, config, name, f"{url!r} is not like http://host:port")
    require(len(set(urls)) == len(urls), config, name, "names a server twice")


KEY_SET = KeySet(KEYS, check=check)
