"""Checks of a whole config that need neither devices nor files."""

import math
from typing import Any

from ml_collections import ConfigDict

from gigpo_jax.config import mix
from gigpo_jax.config.keys import KEYS, value_of
from gigpo_jax.config.requirements import LOOPBACK, host_of, require, require_default, require_urls
from gigpo_jax.core.errors import InputError
from gigpo_jax.core.references import load_reference
from gigpo_jax.env_bridge.agents import find_agent
from gigpo_jax.env_bridge.conversations import Conversation
from gigpo_jax.env_bridge.lessons import shows_lessons
from gigpo_jax.env_bridge.plans import BELIEF, STRATEGY, shows_plans
from gigpo_jax.envs import registry
from gigpo_jax.rl.algorithms import BASE, check_fixed_point, find_algorithm
from gigpo_jax.rl.ratios import MASKS
from gigpo_jax.rl.types import COLUMNS_OF_STEPS

MAX_VLLM_RANK = 512  # largest rank of an adapter that vLLM serves

# Ratios of whole responses. Their clip is as narrow as the rounding of a bfloat16 engine, or their
# sum over tokens as noisy, so old log-probabilities of such an engine would clip at random.
SENSITIVE = ("sequence", "product")


def check_config(config: ConfigDict, trains: bool) -> None:
    """Checks a config in which every key has a value.

    `resolve` has the errors.
    """
    _check_groups(config)
    _check_sizes(config)
    _check_prefill(config)
    _check_model(config, trains)
    _check_adapter(config)
    _check_sampling(config, trains)
    _check_loss(config)
    _check_engine(config)
    # An engine's process, which has the learner's config, does not read the key.
    if trains and config.train.inflight:
        _check_inflight(config)
    # Each environment alone, so that the checks need not know of mixes.
    for label, member in mix.member_configs(config).items():
        with mix.name_member_keys(label):
            _check_environment(member, config)
            _check_harness(member, config)
            _check_algorithm(member, config)
    if not mix.writes_summaries(config):
        reader = "env.context=drop_oldest without env.plan=strategy"
        require_default(config, "sampling.max_summary_tokens", reader)
    _check_agent(config, trains)
    _check_critic(config)


def _check_groups(config: ConfigDict) -> None:
    train = config.train
    if train.group_size == 1:
        algorithm = find_algorithm(config.rl.algorithm, config.rl.settings)
        # A wrapper's critic gives rewards, which its base compares.
        whitens = algorithm.critic_values > 0 and BASE not in algorithm.settings
        require(
            config.rl.normalize == "mean" or whitens,
            config,
            "train.group_size",
            "a group of one has no standard deviation",
            "use at least 2 (published: 8)",
        )
        require(
            not train.refill_groups,
            config,
            "train.refill_groups",
            "a group of one has no second episode to differ from",
            "use 0, or train.group_size of at least 2",
        )
    if train.finish_fraction < 1:
        # Rounded up, as in `GroupEnd`.
        finished = math.ceil(train.finish_fraction * train.group_size)
        require(
            finished > 1,
            config,
            "train.finish_fraction",
            f"leaves {finished} of the {train.group_size} episodes of a group",
            "keep at least 2, which are compared",
        )
    _check_forks(config)
    if "strategy" not in find_algorithm(config.rl.algorithm, config.rl.settings).columns:
        require_default(config, "train.strategy_episodes", f"rl.algorithm={config.rl.algorithm}")
    _check_experience(config)


def _check_experience(config: ConfigDict) -> None:
    """Checks a library of lessons, apart from its environments."""
    train = config.train
    if not train.experience:
        require_default(config, "train.experience_capacity", "train.experience=0")
        return
    reason = "lessons of an iteration are in the prompts of the next one"
    fix = "use train.max_staleness=0"
    require(not train.max_staleness, config, "train.experience", reason, fix)
    reason = f"agent={config.agent} has prompts of its own"
    require(config.agent == "plain", config, "train.experience", reason, "use agent=plain")


def _check_forks(config: ConfigDict) -> None:
    train = config.train
    name = config.rl.algorithm
    algorithm = find_algorithm(name, config.rl.settings)
    if algorithm.fork_choice:
        reason = f"rl.algorithm={name} learns from episodes that begin in states of others"
        require(train.forks > 0, config, "train.forks", reason, "such as half of train.group_size")
        require(
            train.fork_choice == algorithm.fork_choice,
            config,
            "train.fork_choice",
            f"rl.algorithm={name} chooses these states otherwise",
            f"use {algorithm.fork_choice}",
        )
    if not train.earlier_starts:
        require_default(config, "train.earlier_states", "train.earlier_starts=0")
    if not train.forks:
        require_default(config, "train.fork_choice", "train.forks=0")
        return
    # States are compared, or whole episodes.
    fewest = 1 if algorithm.fork_choice else 2
    require(
        train.forks <= train.group_size - fewest,
        config,
        "train.forks",
        "the other episodes of a task are compared with each other"
        if fewest == 2
        else "forks begin in states of the other episodes",
        f"at most {max(train.group_size - fewest, 0)}, train.group_size less {fewest}",
    )
    require(
        train.finish_fraction == 1,
        config,
        "train.finish_fraction",
        "forks begin when all other episodes of their task have ended",
        "use 1, or train.forks=0",
    )
    require(
        algorithm.takes_forks,
        config,
        "train.forks",
        f"rl.algorithm={name} does not tell forks from whole episodes",
        "use 0, or an algorithm of docs/forks.md such as gigpo or graph_values",
    )


def _check_sizes(config: ConfigDict) -> None:
    train = config.train
    sampling = config.sampling
    # Episodes may end earlier; above this number no minibatch could ever be full.
    max_steps = train.groups * train.group_size * config.env.max_steps
    require(
        train.minibatch <= max_steps,
        config,
        "train.minibatch",
        "larger than a whole iteration (train.groups x train.group_size x env.max_steps); "
        f"at most {max_steps} steps",
    )
    sample_tokens = sampling.max_prompt_tokens + sampling.max_response_tokens
    require(
        # A sample is never split over two rows: attention would not reach its prompt.
        config.batch.row_length >= sample_tokens,
        config,
        "batch.row_length",
        f"a prompt and its response must fit in a row: at least {sample_tokens} "
        "(sampling.max_prompt_tokens + sampling.max_response_tokens)",
    )
    require(
        train.curriculum == "none" or not train.max_staleness,
        config,
        "train.curriculum",
        "tasks are drawn before the last success is measured",
        "use none, or train.max_staleness=0",
    )
    require(
        sum(size == -1 for size in config.mesh.values()) <= 1,
        config,
        "mesh.data",
        "only one axis of the mesh can be -1 (all remaining devices)",
    )


def _check_prefill(config: ConfigDict) -> None:
    engine = config.engine
    prompt_tokens = config.sampling.max_prompt_tokens
    if engine.prefill_buckets:
        require(
            # Equal, not only large enough: a larger bucket would be compiled and never used.
            max(engine.prefill_buckets) == prompt_tokens,
            config,
            "engine.prefill_buckets",
            "longer prompts would be lost",
            f"the largest must be sampling.max_prompt_tokens={prompt_tokens}",
        )
    require(
        bool(engine.prefill_chunk) or not engine.keep_responses,
        config,
        "engine.keep_responses",
        "responses are kept where prompts are read in chunks",
        "add --config.engine.prefill_chunk=32, or leave it out",
    )
    if engine.prefill_chunk:
        require(
            engine.prefill_chunk <= prompt_tokens,
            config,
            "engine.prefill_chunk",
            "longer than a prompt",
            f"at most sampling.max_prompt_tokens={prompt_tokens}",
        )
        require(
            not engine.prefill_buckets,
            config,
            "engine.prefill_buckets",
            f"not read with engine.prefill_chunk={engine.prefill_chunk}",
            "leave one of them out",
        )
        require(
            # With one size a chunk has the same bits whichever call reads it, so that it can be
            # shared.
            len(engine.prefill_rows) == 1,
            config,
            "engine.prefill_rows",
            f"chunks (engine.prefill_chunk={engine.prefill_chunk}) are read in calls of one size",
            "name one",
        )


def _check_model(config: ConfigDict, trains: bool) -> None:
    model = config.model
    if not model.path:
        shape = model.shape
        tower = shape.vision
        require(
            shape.num_heads % shape.num_kv_heads == 0,
            config,
            "model.shape.num_kv_heads",
            f"must divide model.shape.num_heads={shape.num_heads}",
        )
        require(
            # The rotary embedding of a tower splits a head into rows and columns, each with pairs
            # of numbers.
            not tower.depth or tower.hidden_size % (4 * tower.num_heads) == 0,
            config,
            "model.shape.vision.hidden_size",
            f"must be a multiple of 4 x model.shape.vision.num_heads={tower.num_heads}",
        )
        reason = "not read without model.path"
        require(not model.revision, config, "model.revision", reason, "leave it out")
        reason = "the word tokenizer of model.shape has no such switch"
        require(model.enable_thinking, config, "model.enable_thinking", reason, "leave it out")
        reason = "an adapter needs a model"
        require(
            not model.lora.rank,
            config,
            "model.lora.rank",
            reason,
            "name one in model.path, or use 0",
        )
    if config.engine.name != "jax":
        reason = "servers do not return the experts of a token"
        require(
            not model.replay_routes, config, "model.replay_routes", reason, "use engine.name=jax"
        )
    # An adapter is float32 whatever type the frozen model has.
    if trains and not model.lora.rank:
        require(
            model.param_dtype == "float32",
            config,
            "model.param_dtype",
            "small updates are rounded away in bfloat16",
            "use float32, or train an adapter (model.lora.rank)",
        )


def _check_adapter(config: ConfigDict) -> None:
    lora = config.model.lora
    if config.engine.name == "vllm":
        reason = f"vLLM takes {MAX_VLLM_RANK} at most"
        require(lora.rank <= MAX_VLLM_RANK, config, "model.lora.rank", reason)
    if config.engine.name != "jax":
        reason = "servers take adapters of the decoder alone"
        require(not lora.vision, config, "model.lora.vision", reason, "leave it out")
    if lora.rank:
        require(
            config.optim.name == "adamw",
            config,
            "optim.name",
            "an adapter has no matrices of layers",
            "use adamw, or train all parameters (model.lora.rank=0)",
        )
    else:
        reason = "set model.lora.rank to its rank"
        require(not lora.vision, config, "model.lora.vision", reason)
        require(not lora.path, config, "model.lora.path", reason)


def _check_sampling(config: ConfigDict, trains: bool) -> None:
    rl = config.rl
    require(
        rl.importance_correction == "none" or rl.old_logprobs == "recompute",
        config,
        "rl.importance_correction",
        "it compares the engine with the learner's own log-probabilities",
        "use rl.old_logprobs=recompute, or none",
    )
    if rl.importance_correction in MASKS:
        require(
            rl.importance_cap > 1,
            config,
            "rl.importance_cap",
            f"{rl.importance_correction} keeps ratios from 1 / cap to cap",
            "use a number greater than 1",
        )
    if rl.ratio in SENSITIVE:
        require(
            rl.old_logprobs == "recompute" or config.engine.dtype == "float32",
            config,
            "rl.old_logprobs",
            f"rounding in a bfloat16 engine moves rl.ratio={rl.ratio} as far as its clip",
            "use recompute",
        )
    if trains:
        # The engine's log-probabilities are then of the cut distribution, the learner's of the
        # whole one: every ratio would carry the mass that the cut removed.
        reason = (
            "the learner does not know the truncated distribution that responses are sampled from"
        )
        fix = "use sampling.top_p=1 and sampling.top_k=-1 in training (evaluation may truncate)"
        require(config.sampling.top_p == 1, config, "sampling.top_p", reason, fix)
        require(config.sampling.top_k == -1, config, "sampling.top_k", reason, fix)


def _check_loss(config: ConfigDict) -> None:
    rl = config.rl
    algorithm = find_algorithm(rl.algorithm, rl.settings)
    if algorithm.token_weights is not None or algorithm.token_advantages is not None:
        require(
            rl.ratio in ("token", "sequence"),
            config,
            "rl.ratio",
            f"one cost for all tokens of a response, so {rl.algorithm} cannot weigh them",
            "choose token or sequence",
        )
    if not rl.kl_coef:
        reason = "not read with rl.kl_coef=0"
        # A key without an effect is refused: the user expects one.
        require(rl.kl_in == "loss", config, "rl.kl_in", reason, "leave it out")
    if "hoelder" not in rl.ratio:
        require_default(config, "rl.hoelder_first", f"rl.ratio={rl.ratio}")
        require_default(config, "rl.hoelder_last", f"rl.ratio={rl.ratio}")
    if rl.importance_correction == "none":
        require_default(config, "rl.importance_cap", "rl.importance_correction=none")
    if rl.anchor_match != "similar":
        require_default(config, "rl.similarity", f"rl.anchor_match={rl.anchor_match}")


def _check_engine(config: ConfigDict) -> None:
    if not config.train.max_staleness:
        reason = "idle during updates, and the others during rollouts"
        require(
            not config.engine.devices,
            config,
            "engine.devices",
            reason,
            "use train.max_staleness of at least 1, or 0",
        )
    if config.engine.name == "jax":
        require(
            not config.engine.urls, config, "engine.urls", "needs engine.name=jax_server or vllm"
        )
        return
    limits = {"train.max_staleness": 1, "engine.devices": 0}
    if config.train.inflight:
        del limits["train.max_staleness"]
    for name, limit in limits.items():
        reason = "servers have devices of their own and the weights of one update"
        fix = f"at most {limit} with engine.name={config.engine.name}"
        require(value_of(config, name) <= limit, config, name, reason, fix)
    _check_servers(config)


def _check_inflight(config: ConfigDict) -> None:
    reason = "the engine of this process changes its weights between requests"
    fix = "use engine.name=jax_server or vllm"
    require(config.engine.name != "jax", config, "train.inflight", reason, fix)
    reason = "no request runs during an update"
    fix = "use train.max_staleness of at least 1"
    require(config.train.max_staleness > 0, config, "train.inflight", reason, fix)


def _check_servers(config: ConfigDict) -> None:
    engine = config.engine
    is_vllm = engine.name == "vllm"
    if not engine.urls:
        reason = "a run starts no servers of this kind"
        fix = "start gigpo engine, and name its address"
        require(is_vllm, config, "engine.urls", reason, fix)
        return
    require_urls(config, "engine.urls")
    hosts = {host_of(url.strip()) for url in engine.urls.split(",")}
    require(
        engine.weights_dir != "" or hosts <= LOOPBACK or not is_vllm,
        config,
        "engine.weights_dir",
        "vLLM servers on other machines take weights from a shared folder",
        "name their --weights-dir (GIGPO_WEIGHTS_DIR)",
    )


def _check_environment(config: ConfigDict, run: ConfigDict) -> None:
    """Checks the config of one environment of a run."""
    env = config.env
    for name in ("env.max_steps", "sampling.max_prompt_tokens", "sampling.max_response_tokens"):
        limit = value_of(run, name)
        reason = "longer than the run allows"
        # Rows and caches have the sizes of the run.
        require(value_of(config, name) <= limit, config, name, reason, f"at most {name}={limit}")
    response_tokens = config.sampling.max_response_tokens
    require(
        env.overlong_buffer <= response_tokens,
        config,
        "env.overlong_buffer",
        "no response is that long",
        f"at most sampling.max_response_tokens={response_tokens}",
    )
    if not env.overlong_buffer:
        require(
            env.overlong_penalty == KEYS["env.overlong_penalty"].default,
            config,
            "env.overlong_penalty",
            "not read without env.overlong_buffer",
            "leave it out, or name the tokens in which the reward falls",
        )
    require(
        env.first_max_steps <= env.max_steps,
        config,
        "env.first_max_steps",
        "the limit of steps grows",
        f"at most env.max_steps={env.max_steps}",
    )
    # Each alone would do nothing, or begin with episodes of no step.
    require(
        bool(env.first_max_steps) == bool(env.max_steps_iterations),
        config,
        "env.max_steps_iterations",
        f"not read without the other of the pair; env.first_max_steps={env.first_max_steps}",
        "give both, or leave both out",
    )
    if not env.resample_turns:
        require_default(config, "env.resample_change", "env.resample_turns=0")
    template = registry.find_style(env.name, env.prompt)
    require(
        not run.train.forks or not isinstance(template, Conversation),
        run,
        "train.forks",
        "saved conversations have no replayed responses",
        "use 0, or another env.prompt than chat",
    )
    if run.train.experience:
        # A program of a harness has prompts of its own.
        shows = shows_lessons(template) and not registry.spec(env.name).harness
        reason = f"prompts of env.name={env.name} with env.prompt={env.prompt} show no lessons"
        fix = "use env.prompt=full or compact, or train.experience=0"
        require(shows, run, "train.experience", reason, fix)
    if run.train.expert_starts:
        _check_expert_starts(config, run, isinstance(template, Conversation))
    if run.train.earlier_starts:
        _check_earlier_starts(config, run, isinstance(template, Conversation))
    if env.context == "summary":
        _check_summaries(config, isinstance(template, Conversation))
    if env.plan != "none":
        _check_plans(config, run, can_show=shows_plans(template))
    options = registry.spec(env.name).options
    if "regret" in options:
        require(
            not env.regret_reward or env.options.get("regret", False),
            config,
            "env.regret_reward",
            "the environment does not tell the regret",
            "add --config.env.options.regret=True",
        )
    # Otherwise the environment would end episodes earlier than the config says.
    if "max_steps" in options:
        limit = env.options.get("max_steps", options["max_steps"].default)
        reason = f"the environment ends an episode after {limit} actions"
        require(
            env.max_steps <= limit,
            config,
            "env.max_steps",
            reason,
            "raise env.options.max_steps too",
        )
    if env.generate and "data" in env.options:
        raise InputError(
            "not used, because env.generate makes the data",
            key="config.env.options.data",
            value=repr(env.options.data),
            fix="add --config.env.generate={} to use this folder",
        )


def _check_summaries(config: ConfigDict, is_conversation: bool) -> None:
    """Checks an environment whose conversations are summarised."""
    sampling = config.sampling
    require(
        is_conversation,
        config,
        "env.context",
        f"env.prompt={config.env.prompt} has prompts of single steps, which never become full",
        "use env.prompt=chat, or leave it out",
    )
    _check_summary_length(config)
    needed = sampling.max_response_tokens
    needed += sampling.max_summary_tokens or sampling.max_response_tokens
    require(
        sampling.max_prompt_tokens > needed,
        config,
        "sampling.max_prompt_tokens",
        f"env.context=summary needs room for a summary and a response, {needed} tokens, beside "
        "what is observed",
        "use more, or env.context=drop_oldest",
    )
    _check_unfit(config, "env.context", "a summary", "use drop_oldest")


def _check_summary_length(config: ConfigDict) -> None:
    sampling = config.sampling
    require(
        sampling.max_summary_tokens <= sampling.max_response_tokens,
        config,
        "sampling.max_summary_tokens",
        "the run has no room for more tokens than those of a response",
        f"at most sampling.max_response_tokens={sampling.max_response_tokens}",
    )


def _check_unfit(config: ConfigDict, key: str, text: str, fix: str) -> None:
    """Refuses algorithms that cannot have turns without a step.

    Args:
      config: Config with one environment.
      key: Key that makes such turns.
      text: What they are, for the message.
      fix: Advice for the message.
    """
    name = config.rl.algorithm
    for signal in _algorithm_signals(config):
        reason = signal.reads_steps_alone.format(text)
        require(not reason, config, key, f"{name} {reason}", fix)


def _check_plans(config: ConfigDict, run: ConfigDict, *, can_show: bool) -> None:
    """Checks an environment whose responses state plans."""
    fix = "leave it out"
    reason = f"agent={config.agent} has prompts of its own"
    require(config.agent == "plain", config, "env.plan", reason, fix)
    reason = f"env.prompt={config.env.prompt} has no place for plans"
    require(can_show, config, "env.plan", reason, "use env.prompt=full or compact, or leave it out")
    reason = "its responses have no tags around the action"
    has_tags = bool(registry.spec(config.env.name).action_tags)
    require(has_tags, config, "env.plan", reason, fix)
    reason = "forks begin without the plan of their state"
    require(not run.train.forks, run, "train.forks", reason, "use 0, or env.plan=none")
    if config.env.plan == BELIEF:
        reason = f"{config.env.name} has no grader of beliefs"
        has_grader = registry.spec(config.env.name).beliefs is not None
        require(has_grader, config, "env.plan", reason, "use alfworld, or leave it out")
    if config.env.plan == STRATEGY:
        _check_summary_length(config)
        _check_unfit(config, "env.plan", "a strategy", "leave it out")


def _check_expert_starts(config: ConfigDict, run: ConfigDict, is_conversation: bool) -> None:
    """Checks that episodes can begin in states of an expert."""
    name = "train.expert_starts"
    fix = "use 0, or another environment"
    # A program of a harness has no expert either.
    has_expert = registry.spec(config.env.name).expert is not None
    require(has_expert, run, name, f"{config.env.name} has no expert", fix)
    reason = "an expert's actions are no responses of a conversation"
    require(not is_conversation, run, name, reason, "use 0, or another env.prompt than chat")
    # The policy's first step would be behind the limit.
    reason = "starts that move and a limit that grows are two orders of the same steps"
    require(not config.env.first_max_steps, config, "env.first_max_steps", reason, "use 0")
    reason = "a task has one start for all of its episodes"
    require(not run.train.forks, run, "train.forks", reason, "use 0, or train.expert_starts=0")
    reason = "a task that takes the place of another one has no start"
    require(not run.train.refill_groups, run, "train.refill_groups", reason, "use 0")


def _check_earlier_starts(config: ConfigDict, run: ConfigDict, is_conversation: bool) -> None:
    """Checks that episodes can begin in states of earlier ones."""
    train = run.train
    name = "train.earlier_starts"
    reason = f"rounded down, no group of train.groups={train.groups}"
    is_enough = train.earlier_starts * train.groups + 1e-6 >= 1
    require(is_enough, run, name, reason, f"use at least {1 / train.groups:.3g}, or 0")
    reason = "the states of a conversation have no responses"
    require(not is_conversation, run, name, reason, "use 0, or another env.prompt than chat")
    reason = "episodes would begin without the plan of their state"
    require(config.env.plan == "none", run, name, reason, "use 0, or env.plan=none")
    is_program = registry.spec(config.env.name).harness
    reason = "a program plays whole episodes of a harness, and cannot replay actions"
    require(not is_program, run, name, reason, "use 0")
    fix = "use 0, or train.earlier_starts=0"
    reason = "a task has one start for all of its episodes"
    require(not train.forks, run, "train.forks", reason, fix)
    require(not train.expert_starts, run, "train.expert_starts", reason, fix)
    reason = "a task that takes the place of another one has no start"
    require(not train.refill_groups, run, "train.refill_groups", reason, fix)
    reason = "rollouts that run ahead would begin before the states are known"
    require(not train.max_staleness, run, "train.max_staleness", reason, fix)


def _check_harness(config: ConfigDict, run: ConfigDict) -> None:
    """Checks an environment that plays whole episodes by itself."""
    env = config.env
    if not registry.spec(env.name).harness:
        return
    reason = "the prompts are those of the harness"
    require(config.agent == "plain", config, "agent", reason, "leave it out")
    require(env.context == "drop_oldest", config, "env.context", reason, "leave it out")
    require(env.plan == "none", config, "env.plan", reason, "leave it out")
    reason = "the program of the harness asks for responses"
    require(not env.resample_turns, config, "env.resample_turns", reason, "use 0")
    reason = "the program of the harness ends its episodes"
    require(not env.first_max_steps, config, "env.first_max_steps", reason, "use 0")
    reason = "the program of the harness posts the rewards"
    require(not env.regret_reward, config, "env.regret_reward", reason, "use 0")
    reason = "a program plays whole episodes of a harness, and cannot replay actions"
    require(not run.train.forks, run, "train.forks", reason, "use 0")
    reason = "a harness plays with the newest weights"
    require(
        # More needs snapshots of the engine; the endpoint has one engine.
        run.train.max_staleness <= 1,
        run,
        "train.max_staleness",
        reason,
        f"at most 1 with env.name={env.name}",
    )
    request_s = run.serve.request_timeout_s
    reason = "a harness plays a whole episode in this time"
    require(
        # A harness plays its whole episode in one step. With a shorter limit its worker would be
        # replaced while it still waits for a response.
        env.step_timeout_s >= request_s,
        config,
        "env.step_timeout_s",
        reason,
        f"at least serve.request_timeout_s={request_s:g}, such as 900",
    )


def _check_agent(config: ConfigDict, trains: bool) -> None:
    agent = find_agent(config.agent)
    if agent.template is None:
        reason = f"the prompts of config.agent={config.agent} show no examples"
        is_default = config.eval.examples == KEYS["eval.examples"].default
        require(is_default, config, "eval.examples", reason, "leave it out")
    if agent.reflection is not None:
        reason = f"{config.agent} reflects between trials"
        require(config.eval.trials > 1, config, "eval.trials", reason, "use 2 or more")
    if trains:
        reason = "only gigpo eval has agents"
        require(config.agent == "plain", config, "agent", reason, "leave it out for this mode")
        reason = "only gigpo eval has trials"
        require(
            config.eval.trials == 1, config, "eval.trials", reason, "leave it out for this mode"
        )


def _algorithm_signals(config: ConfigDict) -> list[Any]:
    """The classes of the signals that the algorithm of a config names."""
    names = find_algorithm(config.rl.algorithm, config.rl.settings).signals
    # By name: only a run whose algorithm has signals imports the learner for its checks.
    return [load_reference(name, key="config.rl.algorithm") for name in names]


def _check_algorithm(config: ConfigDict, run: ConfigDict) -> None:
    """Checks that an environment gives what the algorithm needs."""
    algorithm = find_algorithm(config.rl.algorithm, config.rl.settings)
    for setting, declared in algorithm.settings.items():
        # A default that breaks its own rule stands for what every user has to give.
        complaint = declared.complaint(config.rl.settings[setting])
        require(not complaint, config, f"rl.settings.{setting}", complaint)
    check_fixed_point(config.rl.settings, config.rl.gamma)
    if algorithm.check:
        load_reference(algorithm.check, key="config.rl.algorithm")(config)
    signals = _algorithm_signals(config)
    filled = {name for signal in signals for name in signal.columns}
    for name in {*algorithm.columns} - {*COLUMNS_OF_STEPS} - filled:
        require(False, config, "rl.algorithm", f"no signal of it fills its column {name}")
    for signal in signals:
        if signal.is_needed(config):
            signal.check(config, run)


def _check_critic(config: ConfigDict) -> None:
    critic = config.critic
    name = config.rl.algorithm
    if not find_algorithm(name, config.rl.settings).critic_values:
        reason = f"not used, because {name} has no critic"
        # All keys of the section: none of them would be read.
        for key in KEYS:
            if key.startswith("critic."):
                require(
                    value_of(config, key) == KEYS[key].default,
                    config,
                    key,
                    reason,
                    "leave the key out",
                )
        return
    reason = f"{name} needs a critic"
    require(critic.kind != "none", config, "critic.kind", reason, "use model or head")
    if critic.kind == "head":
        reason = "not used, because critic.kind=head is on the policy's own model"
        require(not critic.path, config, "critic.path", reason, "use critic.kind=model")
    iterations = config.train.iterations
    reason = "the policy would never learn"
    require(
        critic.warmup_iterations < iterations,
        config,
        "critic.warmup_iterations",
        reason,
        f"use less than train.iterations={iterations}",
    )
