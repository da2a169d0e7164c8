"""The checks of a whole config, of everything that needs neither devices nor files."""

import math

from ml_collections import ConfigDict

from gigpo_jax.config import mix
from gigpo_jax.config.keys import KEYS
from gigpo_jax.config.tree import value_of
from gigpo_jax.env_bridge.agents import find_agent
from gigpo_jax.envs import registry
from gigpo_jax.errors import InputError
from gigpo_jax.rl.algorithms import algorithm
from gigpo_jax.rl.ratios import MASKS

TAGGED = "tagged"  # the prompt style that asks for tags

# Ratios of whole responses whose clip is as narrow, or whose sum over tokens as noisy, as a bfloat16 engine's rounding.
SENSITIVE = ("sequence", "product")


def check(config: ConfigDict, trains: bool) -> None:
    """Checks a config in which every key has a value; `resolve` says what it raises."""
    _check_groups(config)
    _check_sizes(config)
    _check_model(config, trains)
    _check_sampling(config)
    _check_loss(config)
    _check_servers(config)
    for label, member in mix.members(config).items():
        with mix.own_keys(label):
            _check_environment(member, config)
            _check_needs(member)
    answers = "answer_logprob" in algorithm(config.rl.algorithm, config.rl.settings).needs and bool(config.env.mix)
    fix = "it reads the known answers of one environment; leave env.mix out, or choose another rl.algorithm"
    require(not answers, config, "rl.algorithm", fix)
    _check_agent(config, trains)
    _check_critic(config)


def require(holds: bool, config: ConfigDict, name: str, fix: str) -> None:
    """Raises an InputError with the key, its value and the fix, unless the condition holds."""
    if not holds:
        raise InputError(f"config.{name}={value_of(config, name)!r}: {fix}")


def _check_groups(config: ConfigDict) -> None:
    train, chosen = config.train, algorithm(config.rl.algorithm, config.rl.settings)
    require(
        train.group_size > 1 or config.rl.normalize == "mean" or chosen.needs_critic,
        config,
        "train.group_size",
        "a group of one has no standard deviation; use at least 2 (published: 8)",
    )
    require(
        train.group_size > 1 or not train.refill_groups,
        config,
        "train.refill_groups",
        "the episode of a group of one always ends alike; use 0, or train.group_size of at least 2",
    )
    finished = math.ceil(train.finish_fraction * train.group_size)
    require(
        train.finish_fraction == 1 or finished > 1,
        config,
        "train.finish_fraction",
        f"leaves {finished} of the {train.group_size} episodes of a group; at least 2 are compared",
    )


def _check_sizes(config: ConfigDict) -> None:
    train, sampling = config.train, config.sampling
    most_steps = train.groups * train.group_size * config.env.max_steps
    require(
        train.minibatch <= most_steps,
        config,
        "train.minibatch",
        f"larger than a whole iteration (train.groups x train.group_size x env.max_steps = {most_steps} steps)",
    )
    sample = sampling.max_prompt_tokens + sampling.max_response_tokens
    require(
        config.batch.row_length >= sample,
        config,
        "batch.row_length",
        f"a prompt and its response must fit in a row: at least {sample} "
        "(sampling.max_prompt_tokens + sampling.max_response_tokens)",
    )
    fix = "tasks are drawn before the last success is measured; use none, or train.max_staleness=0"
    require(train.curriculum == "none" or not train.max_staleness, config, "train.curriculum", fix)
    longest = sampling.max_prompt_tokens
    require(
        max(config.engine.prefill_buckets, default=longest) == longest,
        config,
        "engine.prefill_buckets",
        f"longer prompts would be lost; the largest must be sampling.max_prompt_tokens={longest}",
    )
    chunk, most = config.engine.prefill_chunk, f"longer than a prompt; at most sampling.max_prompt_tokens={longest}"
    require(chunk <= longest, config, "engine.prefill_chunk", most)
    fix = f"not read with engine.prefill_chunk={chunk}; leave one of them out"
    require(not (chunk and config.engine.prefill_buckets), config, "engine.prefill_buckets", fix)
    fix = f"chunks (engine.prefill_chunk={chunk}) are read in calls of one size; name one"
    require(not chunk or len(config.engine.prefill_rows) == 1, config, "engine.prefill_rows", fix)
    fix = "only one axis of the mesh can be -1 (all remaining devices)"
    require(sum(size == -1 for size in config.mesh.values()) <= 1, config, "mesh.data", fix)


def _check_model(config: ConfigDict, trains: bool) -> None:
    model, lora = config.model, config.model.lora
    require(
        bool(model.path) or model.shape.num_heads % model.shape.num_kv_heads == 0,
        config,
        "model.shape.num_kv_heads",
        f"must divide model.shape.num_heads={model.shape.num_heads}",
    )
    tower, path = model.shape.vision, bool(model.path)
    require(
        path or not tower.depth or tower.hidden_size % (4 * tower.num_heads) == 0,
        config,
        "model.shape.vision.hidden_size",
        f"must be a multiple of 4 x model.shape.vision.num_heads={tower.num_heads}",
    )
    require(path or not model.revision, config, "model.revision", "not read without model.path; leave it out")
    fix = "the word tokenizer of model.shape has no such switch; leave it out"
    require(model.enable_thinking or path, config, "model.enable_thinking", fix)
    fix = "an adapter needs a model; name one in model.path, or use 0"
    require(not lora.rank or path, config, "model.lora.rank", fix)
    most = 512 if config.engine.name == "vllm" else lora.rank
    require(lora.rank <= most, config, "model.lora.rank", "vLLM takes 512 at most")
    fix = "vLLM's servers take adapters of the decoder alone; leave it out"
    require(not lora.vision or config.engine.name != "vllm", config, "model.lora.vision", fix)
    require(bool(lora.rank) or not lora.vision, config, "model.lora.vision", "set model.lora.rank to its rank")
    require(bool(lora.rank) or not lora.path, config, "model.lora.path", "set model.lora.rank to its rank")
    require(
        not trains or bool(lora.rank) or model.param_dtype == "float32",
        config,
        "model.param_dtype",
        "small updates are rounded away in bfloat16; use float32, or train an adapter (model.lora.rank)",
    )


def _check_sampling(config: ConfigDict) -> None:
    sampling, rl = config.sampling, config.rl
    require(
        rl.importance_correction == "none" or rl.old_logprobs == "recompute",
        config,
        "rl.importance_correction",
        "it compares the engine with the learner's own log-probabilities; use rl.old_logprobs=recompute, or none",
    )
    require(
        rl.importance_cap > 1 or rl.importance_correction not in MASKS,
        config,
        "rl.importance_cap",
        f"{rl.importance_correction} keeps ratios from 1 / cap to cap; must be greater than 1",
    )
    exact = rl.old_logprobs == "recompute" or config.engine.dtype == "float32"
    require(
        exact or rl.ratio not in SENSITIVE,
        config,
        "rl.old_logprobs",
        f"rounding in a bfloat16 engine moves rl.ratio={rl.ratio} as far as its clip; use recompute",
    )
    require(
        (sampling.top_p == 1 and sampling.top_k == -1) or rl.old_logprobs == "recompute",
        config,
        "sampling.top_p" if sampling.top_p != 1 else "sampling.top_k",
        "the engine's log-probabilities are then of a truncated distribution, the learner's of the whole one; use "
        "sampling.top_p=1 and sampling.top_k=-1, or rl.old_logprobs=recompute",
    )


def _check_loss(config: ConfigDict) -> None:
    rl = config.rl
    found = algorithm(rl.algorithm, rl.settings)
    weighs = found.token_weights is not None or found.token_advantages is not None
    fix = f"one cost for all tokens of a response, so {rl.algorithm} cannot weigh them; choose token or sequence"
    require(not weighs or rl.ratio in ("token", "sequence"), config, "rl.ratio", fix)
    require(bool(rl.kl_coef) or rl.kl_in == "loss", config, "rl.kl_in", "not read with rl.kl_coef=0; leave it out")
    for name, reads, by in (
        ("rl.hoelder_first", "hoelder" in rl.ratio, f"rl.ratio={rl.ratio}"),
        ("rl.hoelder_last", "hoelder" in rl.ratio, f"rl.ratio={rl.ratio}"),
        ("rl.importance_cap", rl.importance_correction != "none", "rl.importance_correction=none"),
        ("rl.similarity", rl.anchor_match == "similar", f"rl.anchor_match={rl.anchor_match}"),
    ):
        given = value_of(config, name) != KEYS[name].default
        require(reads or not given, config, name, f"not read by {by}; leave it out")


def _check_servers(config: ConfigDict) -> None:
    servers, vllm = config.engine.vllm, config.engine.name == "vllm"
    fix = "idle during updates, and the others during rollouts; use train.max_staleness of at least 1, or 0"
    require(config.train.max_staleness > 0 or not config.engine.devices, config, "engine.devices", fix)
    for name, most in (("train.max_staleness", 1), ("engine.devices", 0)):
        fix = f"servers have devices of their own and the weights of one update; at most {most} with engine.name=vllm"
        require(not vllm or value_of(config, name) <= most, config, name, fix)
    if not vllm:
        require(not servers.urls, config, "engine.vllm.urls", "needs engine.name=vllm")
        return
    urls = [url.strip() for url in servers.urls.split(",")] if servers.urls else []
    for url in urls:
        host = url.removeprefix("http://").removeprefix("https://")
        good = host != url and host and "@" not in host and not set(host) & set("/?# ")
        require(bool(good), config, "engine.vllm.urls", f"{url!r} is not like http://host:port")
    require(len(set(urls)) == len(urls), config, "engine.vllm.urls", "names a server twice")
    require(
        not urls or bool(servers.weights_dir),
        config,
        "engine.vllm.weights_dir",
        "servers of engine.vllm.urls take weights from a shared folder; name their --weights-dir (GIGPO_WEIGHTS_DIR)",
    )


def _check_environment(config: ConfigDict, run: ConfigDict) -> None:
    """Checks the config of one environment of a run."""
    env, sampling = config.env, config.sampling
    for name in ("env.max_steps", "sampling.max_prompt_tokens", "sampling.max_response_tokens"):
        most = value_of(run, name)
        require(value_of(config, name) <= most, config, name, f"longer than the run allows; at most {name}={most}")
    require(
        config.env.overlong_buffer <= sampling.max_response_tokens,
        config,
        "env.overlong_buffer",
        f"no response is that long; at most sampling.max_response_tokens={sampling.max_response_tokens}",
    )
    require(
        bool(config.env.overlong_buffer) or config.env.overlong_penalty == KEYS["env.overlong_penalty"].default,
        config,
        "env.overlong_penalty",
        "not read without env.overlong_buffer; leave it out, or name the tokens in which the reward falls",
    )
    fix = "the prompts are those of the harness; leave it out"
    harness, request_s = registry.spec(env.name).harness, run.serve.request_timeout_s
    require(config.agent == "plain" or not harness, config, "agent", fix)
    fix = f"a harness plays with the newest weights; at most 1 with env.name={env.name}"
    require(run.train.max_staleness <= 1 or not harness, run, "train.max_staleness", fix)
    fix = f"the limit for a whole episode of a harness; at least serve.request_timeout_s={request_s:g}, such as 900"
    require(env.step_timeout_s >= request_s or not harness, config, "env.step_timeout_s", fix)
    try:
        registry.style(env.name, env.prompt)
    except InputError as error:
        raise InputError(f"config.env.prompt={env.prompt!r}: {error}") from error
    if "max_steps" in (options := registry.spec(env.name).options):
        most = env.options.get("max_steps", options["max_steps"].default)
        fix = f"the environment ends an episode after {most} actions; raise env.options.max_steps too"
        require(env.max_steps <= most, config, "env.max_steps", fix)
    if env.generate and "data" in env.options:
        raise InputError(
            f"config.env.options.data={env.options.data!r}: not used, because env.generate makes the data; "
            "add --config.env.generate={} to use this folder"
        )


def _check_agent(config: ConfigDict, trains: bool) -> None:
    agent, trials = find_agent(config.agent), config.eval.trials
    reflects, given = agent.reflection is not None, config.eval.examples != KEYS["eval.examples"].default
    fix = f"the prompts of config.agent={config.agent} show no examples; leave it out"
    require(agent.template is not None or not given, config, "eval.examples", fix)
    require(trials > 1 or not reflects, config, "eval.trials", f"{config.agent} reflects between trials; use 2 or more")
    if trains:
        require(config.agent == "plain", config, "agent", "only --mode=eval has agents; leave it out for this mode")
        require(trials == 1, config, "eval.trials", "only --mode=eval has trials; leave it out for this mode")


def _check_needs(config: ConfigDict) -> None:
    needs, history = algorithm(config.rl.algorithm, config.rl.settings).needs, config.env.history
    if "history" in needs:
        fix = f"more past steps than a prompt shows; at most env.history={history}"
        require(config.rl.settings.history <= history, config, "rl.settings.history", fix)
    if "tag" in needs:
        fix = f"{config.rl.algorithm} compares responses by their tags; use {TAGGED}, in which prompts ask for them"
        require(config.env.prompt == TAGGED, config, "env.prompt", fix)
    if "answer_logprob" in needs:
        fix = f"{config.rl.algorithm} needs tasks with a known answer; the environment search has them"
        require(bool(registry.spec(config.env.name).answer_prefix), config, "env.name", fix)
    if "action_mask" in needs:
        fix = f"its responses have no tags around the action, which {config.rl.algorithm} needs; choose another"
        require(bool(registry.spec(config.env.name).action_tags), config, "env.name", fix)


def _check_critic(config: ConfigDict) -> None:
    critic, name = config.critic, config.rl.algorithm
    if not algorithm(name, config.rl.settings).needs_critic:
        for key in (key for key in KEYS if key.startswith("critic.")):
            fix = f"not used, because {name} has no critic; leave the key out"
            require(value_of(config, key) == KEYS[key].default, config, key, fix)
        return
    require(critic.kind != "none", config, "critic.kind", f"{name} needs a critic; use model or head")
    require(
        not critic.path or critic.kind == "model",
        config,
        "critic.path",
        "not used, because critic.kind=head is on the policy's own model; use critic.kind=model",
    )
    require(
        critic.warmup_iterations < config.train.iterations,
        config,
        "critic.warmup_iterations",
        f"the policy would never learn; use less than train.iterations={config.train.iterations}",
    )
