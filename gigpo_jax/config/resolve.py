"""From a config as the user wrote it to one in which every key has its value."""

from collections.abc import Collection, Iterator
from typing import Any

from ml_collections import ConfigDict, config_dict

from gigpo_jax.config import mix
from gigpo_jax.config.checks import SENSITIVE, check, require
from gigpo_jax.config.keys import KEYS
from gigpo_jax.config.tree import flat, holder, value_of
from gigpo_jax.env_bridge.agents import find_agent
from gigpo_jax.errors import InputError, nearest
from gigpo_jax.rl.algorithms import BASE, algorithm

SETTINGS = "rl.settings"  # the section whose keys the algorithm declares
SECTIONS = (*mix.OPTIONS, SETTINGS, mix.MIX)


def default_config() -> ConfigDict:
    """All keys with their defaults, those of the published ALFWorld runs; locked, so a misspelt key fails.

    Keys for which an algorithm may have a default of its own are None until `resolve`.
    """
    config = ConfigDict()
    for name, key in KEYS.items():
        place, last = holder(config, name, make=True)
        place[last] = config_dict.placeholder(type(key.default)) if key.auto else key.default
    for name in SECTIONS:
        place, last = holder(config, name, make=True)
        place[last] = ConfigDict()
    return config.lock()


def resolve(config: ConfigDict, *, trains: bool = True) -> ConfigDict:
    """Fills in what the user left to the program, and checks everything that needs neither devices nor files.

    Args:
      config: as from `default_config`, changed by the user.
      trains: whether parameters will be updated.

    Returns:
      A locked copy without unset keys; what a run computes follows from it alone. Resolving it again changes nothing.

    Raises:
      InputError: the first value that cannot work: its key, the value and the fix.
    """
    config = config.copy_and_resolve_references().unlock()
    for error in unknown_keys(config, flat(config)):
        raise error
    for name, key in KEYS.items():
        given = value_of(config, name)
        if not (key.auto and given is None):
            require(not (complaint := key.complaint(given)), config, name, complaint)
    mix.fill(config)
    _fill(config)
    check(config, trains)
    return config.lock()


def with_defaults(tree: Any, keys: Collection[str]) -> dict[str, Any]:
    """A saved config, flat; `keys` that it is too old to have get their defaults."""
    return flat({key: spec.default for key, spec in KEYS.items() if key in keys}) | flat(tree)


def declared(config: ConfigDict) -> dict[str, type]:
    """The types of the keys that the config's environments and algorithm declare, by dotted key.

    Raises:
      InputError: there is no such environment or algorithm.
    """
    base = {name: value for name, value in config.rl.settings.items() if name == BASE and value}
    settings = algorithm(config.rl.algorithm, base).settings
    return mix.declared(config) | {f"{SETTINGS}.{name}": type(setting.default) for name, setting in settings.items()}


def unknown_keys(config: ConfigDict, names: Any) -> Iterator[InputError]:
    """An error for each dotted key that a config cannot have, with the nearest ones that it can have.

    Keys below an option that is itself a mapping, such as `env.generate.splits.train`, are the user's own.
    """
    options = declared(config)
    known = sorted({*KEYS, *options})
    mappings = tuple(f"{name}." for name, kind in options.items() if kind is dict)
    for name in names:
        if name not in known and not name.startswith(mappings):
            section = next((section for section in SECTIONS if name.startswith(f"{section}.")), "")
            near = nearest(name, [key for key in known if key.startswith(section)])
            fix = f"nearest: {', '.join(near)}" if near else "docs/configuration.md lists them"
            where = f" of the environment {config.env.name}" if name.startswith(tuple(mix.OPTIONS)) else ""
            where = where and (f" of a run with {mix.MIX}" if config.env.mix else where)
            where = f" of the algorithm {config.rl.algorithm}" if name.startswith(SETTINGS) else where
            yield InputError(f"config.{name}: no such key{where}; {fix}")


def _fill(config: ConfigDict) -> None:
    rl, differs = config.rl, config.engine.name == "vllm" or config.train.max_staleness > 0
    for section in (*mix.OPTIONS, SETTINGS):
        place, last = holder(config, section)
        place[last] = mix.without_unset(place[last])
    chosen = algorithm(rl.algorithm, rl.settings)
    rl.settings = ConfigDict({name: rl.settings.get(name, s.default) for name, s in chosen.settings.items()})
    for name, fixed in chosen.fixed.items():
        fix = f"{rl.algorithm} always has {fixed!r}; leave the key out (auto), or choose another rl.algorithm"
        require(rl[name] in (None, fixed), config, f"rl.{name}", fix)
    own = {f"rl.{name}": value for name, value in {**chosen.defaults, **chosen.fixed}.items()}
    own["critic.kind"] = "model" if chosen.needs_critic else "none"
    if rl.importance_correction == "masked_mean":
        own["rl.importance_cap"] = 1.001  # geometric means are close to 1
    own["eval.trials"] = find_agent(config.agent).trials
    for name, key in KEYS.items():
        if value_of(config, name) is None:
            place, last = holder(config, name)
            place[last] = own.get(name, key.default)
    if rl.old_logprobs == "auto":
        rl.old_logprobs = own.get("rl.old_logprobs", "recompute" if differs or rl.ratio in SENSITIVE else "engine")
    if rl.importance_correction == "auto":
        rl.importance_correction = "truncated" if differs and rl.old_logprobs == "recompute" else "none"
