"""The configuration of a run: its keys with their defaults, and the check of all of them at once. No jax here."""

import difflib
from collections.abc import Iterable, Iterator

from ml_collections import ConfigDict

from gigpo_jax.config_limits import FREE, NOT_NEGATIVE, ONE_OF, POSITIVE, SHARE
from gigpo_jax.errors import InputError
from gigpo_jax.models.linears import TARGETS


def default_config() -> ConfigDict:
    """All keys, with the defaults of the published ALFWorld runs (GiGPO paper); locked, so a misspelt key fails."""
    c = ConfigDict()
    c.seed = 0  # everything random derives from it: task order, sampling keys, initial weights
    c.distributed = False  # several hosts run this program together (jax.distributed)
    for name, section in SECTIONS.items():
        c[name] = section()
    return c.lock()


def _env() -> ConfigDict:
    env = ConfigDict()
    env.name = "alfworld"  # a name in gigpo_jax.envs.registry
    env.options = ConfigDict()  # passed to the environment's builder as they are
    env.generate = ConfigDict()  # games to make once, in the user's cache folder, in place of options.data; {} = none
    env.split = "train"  # the split that training tasks are drawn from
    env.max_steps = 50  # actions in an episode
    env.history = 2  # past (observation, action) pairs in a prompt
    env.prompt = "full"  # a style of the environment's prompts: full (instructions) or compact (tiny models)
    env.show_admissible = True  # list the admissible actions in the prompt
    env.invalid_penalty = 0.1  # taken from the reward of a step whose response is malformed
    env.require_admissible = False  # whether an action that is not admissible counts as malformed too
    env.workers = 2  # environment processes
    env.start_timeout_s = 120.0  # for a worker to come up, and for a reset
    env.step_timeout_s = 60.0  # for one step; past it the worker is replaced and its episodes aborted
    env.max_aborted_fraction = 0.5  # of an iteration's episodes; with more aborted the run stops
    return env


LORA_TARGETS = tuple(TARGETS)


def _model() -> ConfigDict:
    model = ConfigDict()
    model.path = ""  # a Hugging Face folder (config.json, *.safetensors, tokenizer); "" = random weights of model.shape
    model.shape = ConfigDict(  # used without a path: a Qwen2.5 architecture with a word-level tokenizer
        {
            "hidden_size": 128,
            "intermediate_size": 384,
            "num_layers": 4,
            "num_heads": 4,
            "num_kv_heads": 2,
            "rope_theta": 1e6,
        }
    )
    model.param_dtype = "float32"  # of the parameters as they are kept; optimizer state and adapters are float32
    model.lora = ConfigDict()  # train a low-rank adapter, the model itself stays as it is (docs/scaling.md)
    model.lora.rank = 0  # of every pair of matrices; 0 = no adapter, all parameters are trained
    model.lora.alpha = 32.0  # what a pair adds is multiplied by alpha / rank
    model.lora.targets = LORA_TARGETS  # the linear layers that have a pair: names out of the default
    model.lora.path = ""  # an adapter to start from, in PEFT's layout; "" = one that changes nothing yet
    model.compute_dtype = "bfloat16"  # of activations
    model.unroll = 1  # layers in one pass of the scan over layers; more compile longer and may run faster
    model.remat = "full"  # what the backward pass computes again: none, dots or full
    return model


def _mesh() -> ConfigDict:
    mesh = ConfigDict()
    mesh.data = -1  # devices along each axis; -1 = all that are left
    mesh.fsdp = 1
    mesh.tensor = 1
    return mesh


def _engine() -> ConfigDict:
    engine = ConfigDict()
    engine.name = "jax"  # jax: in this process; vllm: servers beside it (docs/scaling.md)
    engine.slots = 128  # sequences that are decoded together
    engine.dtype = "bfloat16"  # of the engine's activations and its KV cache; vllm: of its weights too
    engine.prefill_buckets = ()  # prompt lengths to compile for; () = powers of two up to sampling.max_prompt_tokens
    engine.prefill_rows = (16,)  # prompts read at once; with several sizes a run is repeatable only to rounding
    engine.decode_steps = 16  # tokens between two looks at the host
    engine.vllm = ConfigDict()  # the servers of engine.name=vllm
    engine.vllm.urls = ""  # servers that are there already, "http://a:8000,http://b:8000"; their key: VLLM_API_KEY
    engine.vllm.launch = True  # without engine.vllm.urls, start the servers on this machine and end them with the run
    engine.vllm.servers = 1  # how many to start
    engine.vllm.python = ".venv-vllm/bin/python"  # the interpreter of the environment that has vLLM
    engine.vllm.port = 0  # of the first server to start, the others follow; 0 = any that are free
    engine.vllm.args = ""  # more arguments for the servers to start
    engine.vllm.cache_gib = 1.0  # on CPUs: KV cache of a server
    engine.vllm.gpu_memory_fraction = 0.85  # on GPUs: share of a GPU's memory that a server takes
    engine.vllm.weights_dir = ""  # where new weights are handed over, shared with the servers; "" = in memory (tmpfs)
    engine.vllm.weights_host = ""  # the learner's address, for servers that pull weights over HTTP; "" = weights_dir
    engine.vllm.weights_port = 0  # for that, as in the --weights-url of the servers
    engine.vllm.start_timeout_s = 600.0  # for a server to come up
    engine.vllm.connect_timeout_s = 60.0  # for a server of engine.vllm.urls to come (back)
    engine.vllm.request_timeout_s = 600.0  # for one response
    engine.vllm.push_timeout_s = 600.0  # for each step of handing new weights over
    engine.vllm.restarts = 3  # how often a server that died is started again in a run
    return engine


def _sampling() -> ConfigDict:
    sampling = ConfigDict()
    sampling.temperature = 1.0
    sampling.top_p = 1.0
    sampling.top_k = -1  # -1 = off
    sampling.max_prompt_tokens = 2048
    sampling.max_response_tokens = 512
    sampling.stop = ("</action>",)  # a response ends with the first of these
    return sampling


def _rl() -> ConfigDict:
    rl = ConfigDict()
    rl.algorithm = "gigpo"  # a name in gigpo_jax.rl.algorithms
    rl.preset = "verl_agent"  # how the statistics run: paper or verl_agent (docs/algorithm.md)
    rl.gamma = 0.95
    rl.step_weight = 1.0  # omega, the weight of the step advantage (equation 8)
    rl.normalize = "mean_std"  # or mean
    rl.clip_low = 0.2
    rl.clip_high = 0.2
    rl.dual_clip = 3.0
    rl.kl_coef = 0.01  # 0 = no reference policy is loaded
    rl.entropy_coef = 0.0
    rl.old_logprobs = "auto"  # of the ratio: engine (as sampled), recompute (by the learner); auto: recompute for vllm
    rl.importance_correction = "auto"  # learner against engine: none, truncated; auto: truncated for recompute and vllm
    rl.importance_cap = 2.0  # truncated: the largest importance weight of a token
    rl.anchor_match = "exact"  # or similar (rl.similarity)
    rl.similarity = 0.9
    return rl


def _optim() -> ConfigDict:
    optim = ConfigDict()
    optim.lr = 1e-6
    optim.schedule = "constant"  # constant, linear or cosine, after the warm-up
    optim.warmup_fraction = 0.0  # of all optimizer steps
    optim.b1 = 0.9
    optim.b2 = 0.999
    optim.weight_decay = 0.01
    optim.grad_clip = 1.0  # global norm
    return optim


def _batch() -> ConfigDict:
    batch = ConfigDict()
    batch.row_length = 4096  # tokens of a packed row; a prompt and its response must fit
    batch.rows = 4  # rows of a microbatch, over all devices
    batch.logprob_chunk = 1024  # tokens whose logits exist at a time
    return batch


def _train() -> ConfigDict:
    train = ConfigDict()
    train.iterations = 150
    train.groups = 16  # tasks an iteration
    train.group_size = 8  # episodes of each task
    train.minibatch = 256  # steps of an optimizer update
    train.epochs = 1  # passes over an iteration's steps
    train.max_staleness = 0  # 1: the next rollout runs during the update, with weights one update old (vllm only)
    train.save_rollouts = 10  # every so many iterations the trajectories are written; 0 = never
    return train


def _sft() -> ConfigDict:
    sft = ConfigDict()
    sft.episodes = 4000  # demonstrations
    sft.epochs = 1
    sft.minibatch = 256  # steps of an optimizer update
    sft.checkpoint_every = 200  # updates
    sft.learn_prompts = False  # predict the prompts too: teaches a model from scratch to read them
    sft.demonstrator = ConfigDict()  # how the expert is made worse on purpose; {} = as it is
    return sft


def _eval() -> ConfigDict:
    evaluate = ConfigDict()
    evaluate.every = 5  # iterations; 0 = before and after only
    evaluate.panel = ""  # a frozen panel: its JSON file
    evaluate.tasks = 0  # the first so many of the panel's tasks; 0 = all
    evaluate.temperature = 0.4
    evaluate.greedy = False  # before and after training, evaluate greedily too
    return evaluate


def _checkpoint() -> ConfigDict:
    checkpoint = ConfigDict()
    checkpoint.every = 10  # iterations
    checkpoint.keep = 2
    return checkpoint


SECTIONS = {
    "env": _env,
    "model": _model,
    "mesh": _mesh,
    "engine": _engine,
    "sampling": _sampling,
    "rl": _rl,
    "optim": _optim,
    "batch": _batch,
    "train": _train,
    "sft": _sft,
    "eval": _eval,
    "checkpoint": _checkpoint,
}


def unknown_keys(config: ConfigDict, keys: Iterable[str]) -> Iterator[InputError]:
    """An error for each key that a config does not have, naming the nearest ones that it has.

    Args:
      config: any config.
      keys: dotted, such as `train.groups`.
    """
    known = sorted(_all_keys(config))
    for key in keys:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=3) or [k for k in known if k.endswith(key.split(".")[-1])]
            fix = f"nearest: {', '.join(near)}" if near else "docs/configuration.md lists them"
            yield InputError(f"config.{key}: no such key; {fix}")


def _all_keys(config: ConfigDict, prefix: str = "") -> Iterator[str]:
    for name, value in config.items():
        yield prefix + name
        if isinstance(value, ConfigDict):
            yield from _all_keys(value, f"{prefix}{name}.")


def _value(config: ConfigDict, key: str) -> object:
    for part in key.split("."):
        config = config[part]
    return config


def _require(holds: bool, config: ConfigDict, key: str, fix: str) -> None:
    if not holds:
        raise InputError(f"config.{key}={_value(config, key)!r}: {fix}")


def validate(config: ConfigDict) -> None:
    """Checks what can be checked before anything is allocated.

    Args:
      config: as from `default_config`.

    Raises:
      InputError: the first value that cannot work: its key, the value and the fix.
    """
    known = {*_all_keys(default_config())}
    added = [key for key in _all_keys(config) if key not in known and not key.startswith(FREE)]
    for error in unknown_keys(default_config(), added):  # a config file that unlocked its config can add any
        raise error
    for key in POSITIVE:
        _require(_value(config, key) > 0, config, key, "must be greater than 0")  # type: ignore[operator]
    for key in NOT_NEGATIVE:
        _require(_value(config, key) >= 0, config, key, "must not be negative")  # type: ignore[operator]
    for key in SHARE:
        _require(0 <= _value(config, key) <= 1, config, key, "must lie between 0 and 1")  # type: ignore[operator]
    for key, names in ONE_OF.items():
        _require(_value(config, key) in names, config, key, f"must be one of {', '.join(map(str, names))}")
    _validate_sizes(config)
    _validate_lora(config)
    _validate_engine(config)
    _require(
        importance_correction(config) == "none" or old_logprobs(config) == "recompute",
        config,
        "rl.importance_correction",
        "it compares the engine with the learner's own log-probabilities; use rl.old_logprobs=recompute, or none",
    )
    whole = config.sampling.top_p == 1 and config.sampling.top_k == -1
    _require(
        whole or old_logprobs(config) != "engine",
        config,
        "sampling.top_p" if config.sampling.top_p != 1 else "sampling.top_k",
        "the engine's log-probabilities are then of a truncated distribution, the learner's of the whole one; use "
        "sampling.top_p=1 and sampling.top_k=-1, or rl.old_logprobs=recompute",
    )


def old_logprobs(config: ConfigDict) -> str:
    """The value of `rl.old_logprobs`, "auto" resolved: "engine" or "recompute"."""
    chosen = config.rl.old_logprobs
    return chosen if chosen != "auto" else "recompute" if config.engine.name == "vllm" else "engine"


def importance_correction(config: ConfigDict) -> str:
    """The value of `rl.importance_correction`, "auto" resolved: "none" or "truncated"."""
    chosen = config.rl.importance_correction
    needed = config.engine.name == "vllm" and old_logprobs(config) == "recompute"
    return chosen if chosen != "auto" else "truncated" if needed else "none"


def _validate_engine(config: ConfigDict) -> None:
    servers, vllm = config.engine.vllm, config.engine.name == "vllm"
    _require(
        config.train.max_staleness == 0 or vllm,
        config,
        "train.max_staleness",
        "the in-process engine shares the learner's arrays; use 0, or engine.name=vllm",
    )
    if not vllm:
        _require(not servers.urls, config, "engine.vllm.urls", "needs engine.name=vllm")
        return
    urls = [url.strip() for url in servers.urls.split(",")] if servers.urls else []
    for url in urls:
        host = url.removeprefix("http://").removeprefix("https://")
        good = host != url and host and "@" not in host and not set(host) & set("/?# ")
        _require(bool(good), config, "engine.vllm.urls", f"{url!r} is not like http://host:port")
    _require(len(set(urls)) == len(urls), config, "engine.vllm.urls", "names a server twice")
    _require(bool(urls) or servers.launch, config, "engine.vllm.launch", "set it to True or engine.vllm.urls")
    loopback = [url for url in urls if url.split("//")[1].split(":")[0] in ("127.0.0.1", "localhost")]
    _require(
        not urls or bool(servers.weights_dir or servers.weights_host),
        config,
        "engine.vllm.weights_dir",
        "servers of engine.vllm.urls need their GIGPO_WEIGHTS_DIR here, or engine.vllm.weights_host",
    )
    _require(
        not (servers.weights_host in ("127.0.0.1", "localhost") and len(loopback) < len(urls)),
        config,
        "engine.vllm.weights_host",
        "servers on other machines cannot reach that; give this machine's address",
    )
    _require(
        not (urls and servers.weights_host and servers.weights_port == 0),
        config,
        "engine.vllm.weights_port",
        "servers pull weights from one fixed address; give the port that is in their --weights-url",
    )


def _validate_lora(config: ConfigDict) -> None:
    lora = config.model.lora
    known, chosen = set(LORA_TARGETS), set(lora.targets)
    _require(
        bool(chosen) and chosen <= known and len(chosen) == len(lora.targets),
        config,
        "model.lora.targets",
        f"must be one or more of {', '.join(LORA_TARGETS)}, each once",
    )
    _require(
        not lora.rank or bool(config.model.path),
        config,
        "model.lora.rank",
        "an adapter needs a model that it adapts: name one in model.path, or use 0 for a model from nothing",
    )
    most = 512 if config.engine.name == "vllm" else lora.rank
    _require(lora.rank <= most, config, "model.lora.rank", "vLLM takes 512 at most")
    _require(bool(lora.rank) or not lora.path, config, "model.lora.path", "set model.lora.rank to its rank")


def _validate_sizes(config: ConfigDict) -> None:
    train, sampling = config.train, config.sampling
    _require(
        train.group_size > 1 or config.rl.normalize == "mean",
        config,
        "train.group_size",
        "one episode has nothing to be compared with and no standard deviation; use at least 2 (published: 8)",
    )
    most_steps = train.groups * train.group_size * config.env.max_steps
    _require(
        train.minibatch <= most_steps,
        config,
        "train.minibatch",
        f"larger than a whole iteration (train.groups x train.group_size x env.max_steps = {most_steps} steps)",
    )
    sample = sampling.max_prompt_tokens + sampling.max_response_tokens
    _require(
        config.batch.row_length >= sample,
        config,
        "batch.row_length",
        f"a prompt and its response must fit in a row: at least {sample} "
        "(sampling.max_prompt_tokens + sampling.max_response_tokens)",
    )
    _require(
        all(0 < bucket <= sampling.max_prompt_tokens for bucket in config.engine.prefill_buckets),
        config,
        "engine.prefill_buckets",
        f"must lie between 1 and sampling.max_prompt_tokens={sampling.max_prompt_tokens}",
    )
    _require(sampling.top_k == -1 or sampling.top_k > 0, config, "sampling.top_k", "must be -1 (off) or at least 1")
    _require(
        sum(size == -1 for size in config.mesh.values()) <= 1,
        config,
        "mesh.data",
        "only one axis of the mesh can be -1 (all devices that are left)",
    )
    shape = config.model.shape
    _require(
        bool(config.model.path) or shape.num_heads % shape.num_kv_heads == 0,
        config,
        "model.shape.num_kv_heads",
        f"must divide model.shape.num_heads={shape.num_heads}",
    )
