"""Fills in the unset keys of a config, and checks it."""

from collections.abc import Iterator, Mapping
from typing import Any

from ml_collections import ConfigDict, config_dict

from gigpo_jax.config import mix
from gigpo_jax.config.checks import check_config
from gigpo_jax.config.core_keys import CORE
from gigpo_jax.config.keys import AUTO, DEFAULTS, KEYS, find_section, flatten, is_default, value_of
from gigpo_jax.config.requirements import require
from gigpo_jax.core.errors import InputError
from gigpo_jax.env_bridge.prompt_building import is_conversation
from gigpo_jax.envs import registry
from gigpo_jax.rl.algorithms import BASE, find_algorithm
from gigpo_jax.rl.ratios import SENSITIVE

CHUNK = 32  # `engine.prefill_chunk`; published configs have it too
FEWEST_SLOTS = 16  # of `engine.slots`: below, a step takes CPUs as long


def default_config() -> ConfigDict:
    """Returns all keys with their defaults.

    They are the settings of the published ALFWorld runs. The config is locked, so a misspelt key
    fails. Keys for which an algorithm may have its own default are None until `resolve`.
    """
    config = ConfigDict()
    for name, default in DEFAULTS.items():
        section, last = find_section(config, name, make=True)
        # A placeholder is None and still has a type, so that a config file cannot set a text for a
        # number.
        section[last] = config_dict.placeholder(type(default)) if name in AUTO else default
    for name in mix.SECTIONS:
        section, last = find_section(config, name, make=True)
        section[last] = ConfigDict()
    return config.lock()


def resolve(config: ConfigDict, *, trains: bool = True) -> ConfigDict:
    """Fills in unset keys, and checks all of the config that needs neither devices nor files.

    Args:
      config: Config of `default_config`, changed by the user.
      trains: True if parameters will be updated.

    Returns:
      A locked copy without unset keys; what a run computes follows from it alone. Resolving it
      again changes nothing.

    Raises:
      InputError: The first invalid value, with its key and the fix.
    """
    config = config.copy_and_resolve_references().unlock()
    # First of all: the other steps read the keys that environment and algorithm declare.
    for error in unknown_keys(config, flatten(config)):
        raise error
    for name in KEYS:
        value = value_of(config, name)
        if (name not in CORE and is_default(config, name)) or (value is None and name in AUTO):
            continue
        complaint = KEYS[name].complaint(value)
        require(not complaint, config, name, complaint)
    # Names of environments first: the defaults and checks below read what they declare.
    if config.env.mix:
        from gigpo_jax.config.mix_keys import fill_mix

        fill_mix(config)
    _fill_defaults(config)
    check_config(config, trains)
    return config.lock()


def declared_types(config: ConfigDict) -> dict[str, type]:
    """Returns the types of the keys, by dotted key, that environments and algorithm declare.

    Raises:
      InputError: There is no such environment or algorithm.
    """
    base = config.rl.settings.get(BASE)
    settings = find_algorithm(config.rl.algorithm, {BASE: base} if base else {}).settings
    if config.env.mix:
        from gigpo_jax.config.mix_keys import mix_types

        types = mix_types(config)
    else:
        types = mix.environment_types(config.env.name)
    for name, setting in settings.items():
        types[f"{mix.SETTINGS}.{name}"] = type(setting.default)
    return types


def unknown_keys(config: ConfigDict, names: Any) -> Iterator[InputError]:
    """Yields an error with the nearest valid names for each dotted key that does not exist.

    Keys below an option that is itself a mapping, such as `env.generate.splits.train`, are the
    user's own.
    """
    options = declared_types(config)
    valid_names = sorted({*KEYS, *options})
    mappings = tuple(f"{name}." for name, kind in options.items() if kind is dict)
    for name in names:
        if name not in valid_names and not name.startswith(mappings):
            from gigpo_jax.config.unknown_keys import explain_unknown

            yield explain_unknown(config, name, valid_names)


def _fill_defaults(config: ConfigDict) -> None:
    for name in (*mix.OPTIONS, mix.SETTINGS):
        section, last = find_section(config, name)
        section[last] = mix.without_unset(section[last])
    rl = config.rl
    algorithm = find_algorithm(rl.algorithm, rl.settings)
    settings = {name: setting.default for name, setting in algorithm.settings.items()}
    # All of them, also defaults: a resumed run compares them even if a later version has other
    # ones.
    rl.settings = ConfigDict(settings | rl.settings.to_dict())
    for name, value in algorithm.fixed.items():
        reason = f"{rl.algorithm} always has {value!r}"
        fix = "leave the key out (auto), or choose another rl.algorithm"
        require(rl[name] in (None, value), config, f"rl.{name}", reason, fix)

    defaults = {f"rl.{name}": value for name, value in algorithm.defaults.items()}
    defaults |= {f"rl.{name}": value for name, value in algorithm.fixed.items()}
    defaults["critic.kind"] = "model" if algorithm.critic_values else "none"
    if rl.importance_correction == "masked_mean":
        defaults["rl.importance_cap"] = 1.001  # geometric means are close to 1
    if config.agent != "plain":
        from gigpo_jax.env_bridge.agents import find_agent

        defaults["eval.trials"] = find_agent(config.agent).trials
    defaults["engine.slots"] = _default_slots(config)
    defaults |= _prefill_defaults(config)
    for name in AUTO:
        if value_of(config, name) is None:
            section, last = find_section(config, name)
            section[last] = defaults.get(name, DEFAULTS[name])
    # Last: it reads rl.ratio, which is filled in above.
    _choose_logprobs(config, defaults)


def _default_slots(config: ConfigDict) -> int:
    """Chooses the number of slots for an iteration's episodes, a power of two."""
    train = config.train
    # Each step computes all slots, also those without a request.
    rollouts = train.max_staleness + 1 if train.inflight else 1
    episodes = train.groups * train.group_size * rollouts
    slots = FEWEST_SLOTS
    while slots < min(episodes, DEFAULTS["engine.slots"]):
        slots *= 2
    return slots


def _prefill_defaults(config: ConfigDict) -> dict[str, Any]:
    """Returns defaults for prompts that share or continue texts."""
    engine = config.engine
    if engine.name == "vllm":
        return {}
    is_chat = False
    has_program = False
    for label, member in mix.member_configs(config).items():
        with mix.name_member_keys(label):
            style = registry.find_style(member.env.name, member.env.prompt)
            # A program may hold conversations, or not.
            has_program |= registry.spec(member.env.name).harness
        is_chat |= is_conversation(style)
    chunk = engine.prefill_chunk
    if chunk is None:
        # Buckets are for whole prompts, and chunks are read in calls of one size.
        in_chunks = not engine.prefill_buckets and len(engine.prefill_rows) == 1
        limit = config.sampling.max_prompt_tokens
        chunk = min(CHUNK, limit) if in_chunks else 0
    keep_responses = chunk > 0 and (is_chat or has_program)
    return {"engine.prefill_chunk": chunk, "engine.keep_responses": keep_responses}


def _choose_logprobs(config: ConfigDict, defaults: Mapping[str, Any]) -> None:
    """Replaces "auto" of the old log-probabilities and of the correction."""
    rl = config.rl
    # Servers have kernels of their own, and weights of an earlier update other probabilities.
    engine_differs = config.engine.name == "vllm" or config.train.max_staleness > 0
    if rl.old_logprobs == "auto":
        needs_learner = engine_differs or rl.ratio in SENSITIVE
        source = "recompute" if needs_learner else "engine"
        rl.old_logprobs = defaults.get("rl.old_logprobs", source)
    if rl.importance_correction == "auto":
        corrects = engine_differs and rl.old_logprobs == "recompute"
        rl.importance_correction = "truncated" if corrects else "none"
