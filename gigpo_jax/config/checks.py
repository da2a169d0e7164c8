"""Checks of a whole config that need neither devices nor files.

Only the core's keys are checked here; key sets check their own (`keys.KEY_SETS`).
"""

from ml_collections import ConfigDict

from gigpo_jax.config import mix
from gigpo_jax.config.keys import KEY_SET_DEFAULTS, KEY_SETS, is_default, value_of
from gigpo_jax.config.requirements import require
from gigpo_jax.core.errors import InputError
from gigpo_jax.core.references import load_reference
from gigpo_jax.envs import registry
from gigpo_jax.rl.algorithms import find_algorithm, make_advantages
from gigpo_jax.rl.types import COLUMNS_OF_STEPS


def check_config(config: ConfigDict, trains: bool) -> None:
    """Checks a config in which every key has a value, and raises the errors of `resolve`."""
    _check_sizes(config)
    _check_prefill(config)
    key_sets = [KEY_SETS[name] for name in used_key_sets(config)]
    for key_set in key_sets:
        if key_set.check:
            key_set.check(config, trains)
    # Each environment alone, so that the checks need not know of mixes.
    for label, member in mix.member_configs(config).items():
        with mix.name_member_keys(label):
            for key_set in key_sets:
                if key_set.check_member:
                    key_set.check_member(member, config)
            _check_environment(member, config)
            _check_algorithm(member, config)


def used_key_sets(config: ConfigDict) -> list[str]:
    """The key sets that have something to check: a key that is set, or a use without its keys."""
    algorithm = find_algorithm(config.rl.algorithm, config.rl.settings)
    conditions = {
        "servers": config.engine.name != "jax",
        "vLLM servers": config.engine.name == "vllm",
        "adapter": config.model.param_dtype != "float32",
        "critic": algorithm.critic_values > 0,
        "losses": config.rl.importance_correction != "none" or config.rl.ratio != "token",
        "starts of episodes": algorithm.fork_choice != "",
        "groups": config.train.group_size == 1,
        "random weights": not config.model.path,
    }
    # Environments of a mix may have keys of any set, and a harness is the endpoint's.
    has_mix = bool(config.env.mix) or registry.spec(config.env.name).harness
    return [
        title
        for title, keys in KEY_SET_DEFAULTS.items()
        if has_mix or conditions.get(title) or not all(is_default(config, key) for key in keys)
    ]


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
    # A sample is never split over two rows: attention would not reach its prompt.
    fits = config.batch.row_length >= sample_tokens
    reason = (
        f"a prompt and its response must fit in a row: at least {sample_tokens} "
        "(sampling.max_prompt_tokens + sampling.max_response_tokens)"
    )
    require(fits, config, "batch.row_length", reason)


def _check_prefill(config: ConfigDict) -> None:
    engine = config.engine
    prompt_tokens = config.sampling.max_prompt_tokens
    if engine.prefill_buckets:
        # Equal, not only large enough: a larger bucket would be compiled and never used.
        is_largest = max(engine.prefill_buckets) == prompt_tokens
        reason = "longer prompts would be lost"
        fix = f"the largest must be sampling.max_prompt_tokens={prompt_tokens}"
        require(is_largest, config, "engine.prefill_buckets", reason, fix)
    if not engine.prefill_chunk:
        return
    chunk = engine.prefill_chunk
    fix = f"at most sampling.max_prompt_tokens={prompt_tokens}"
    is_short = chunk <= prompt_tokens
    require(is_short, config, "engine.prefill_chunk", "longer than a prompt", fix)
    reason = f"not read with engine.prefill_chunk={chunk}"
    fix = "leave one of them out"
    require(not engine.prefill_buckets, config, "engine.prefill_buckets", reason, fix)
    # With one size a chunk has the same bits whichever call reads it, so that it can be shared.
    reason = f"chunks (engine.prefill_chunk={chunk}) are read in calls of one size"
    require(len(engine.prefill_rows) == 1, config, "engine.prefill_rows", reason, "name one")


def _check_environment(config: ConfigDict, run: ConfigDict) -> None:
    """Checks the config of one environment of a run."""
    env = config.env
    for name in ("env.max_steps", "sampling.max_prompt_tokens", "sampling.max_response_tokens"):
        limit = value_of(run, name)
        reason = "longer than the run allows"
        # Rows and caches have the sizes of the run.
        require(value_of(config, name) <= limit, config, name, reason, f"at most {name}={limit}")
    registry.check_anchor(registry.spec(env.name), env.anchor)
    if env.generate and "data" in env.options:
        raise InputError(
            "not used, because env.generate makes the data",
            key="config.env.options.data",
            value=repr(env.options.data),
            fix="add --config.env.generate={} to use this folder",
        )


def _check_algorithm(config: ConfigDict, run: ConfigDict) -> None:
    """Checks that an environment gives what the algorithm needs."""
    algorithm = find_algorithm(config.rl.algorithm, config.rl.settings)
    for setting, declared in algorithm.settings.items():
        # A default that breaks its own rule stands for what every user has to give.
        complaint = declared.complaint(config.rl.settings[setting])
        require(not complaint, config, f"rl.settings.{setting}", complaint)
    rl = config.rl
    rules = {"gamma": rl.gamma, "step_weight": rl.step_weight, "normalize": rl.normalize}
    # For its errors: settings that are right alone and wrong together.
    make_advantages(rl.algorithm, rl.preset, **rules, **rl.settings)
    if algorithm.check:
        load_reference(algorithm.check, key="config.rl.algorithm")(config)
    signals = algorithm.load_signals()
    filled = {name for signal in signals for name in signal.columns}
    for name in {*algorithm.columns} - {*COLUMNS_OF_STEPS} - filled:
        require(False, config, "rl.algorithm", f"no signal of it fills its column {name}")
    for signal in signals:
        if signal.is_needed(config):
            signal.check(config, run)
