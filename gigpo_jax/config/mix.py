"""`env.mix`: several environments in one run.

Each has a label, and a config of the run with this environment alone.
"""

import contextlib
import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ml_collections import ConfigDict

from gigpo_jax.config.core_keys import WEIGHT
from gigpo_jax.config.key_types import Key
from gigpo_jax.config.keys import DEFAULTS, KEYS
from gigpo_jax.core.errors import InputError
from gigpo_jax.env_bridge.plans import PLANS
from gigpo_jax.envs import registry

# Sections whose keys an environment declares -> the field of `entry_types.Environment` with the
# declaration.
OPTIONS = {
    "env.options": "options",
    "env.generate": "generate_options",
    "sft.demonstrator": "expert_options",
}
MIX = "env.mix"
_NAME = re.compile(rf"{re.escape(MIX)}\.\w+\.name")


@functools.cache
def run_keys() -> Mapping[str, str]:
    """KEY of env.mix.LABEL.KEY -> the key of the run that it replaces for this environment."""
    mixed_keys = [name for name, key in KEYS.items() if key.mixes]
    return {name.rpartition(".")[2]: name for name in (*mixed_keys, *OPTIONS)}


def fill_mix(config: ConfigDict) -> None:
    """Fills in names and weights of the environments, and the name of them all as `env.name`.

    Raises:
      InputError: A label or value of `env.mix` is invalid, or a key has no effect beside it.
    """
    if not config.env.mix:
        return
    for label, section in config.env.mix.items():
        _check_label(label)
        _fill_section(label, section)
    names = "+".join(config.env.mix)
    reason = f"not read with {MIX}"
    # `names` is there when a resolved config is resolved again.
    if config.env.name not in (DEFAULTS["env.name"], names):
        value = repr(config.env.name)
        raise InputError(reason, key="config.env.name", value=value, fix="leave it out")
    if config.eval.panel:
        value = repr(config.eval.panel)
        fix = f"use {MIX}.LABEL.panel"
        raise InputError(reason, key="config.eval.panel", value=value, fix=fix)
    config.env.name = names


def _check_label(label: str) -> None:
    key = f"config.{MIX}.{label}"
    # Labels are parts of dotted keys and of names of metrics.
    if not re.fullmatch(r"[A-Za-z]\w*", label):
        reason = "a label is a letter, then letters, digits and _"
        raise InputError(reason, key=key, fix="rename it")
    if label == "all":
        reason = "that is the name of the total in results"
        raise InputError(reason, key=key, fix="rename it")


def _fill_section(label: str, section: ConfigDict) -> None:
    """Checks an environment's keys, drops the unset ones, and fills in name and weight."""
    declarations = member_keys()
    # A copy: keys are removed in the loop.
    for name, value in list(section.items()):
        if value is None:  # as if the key had not been given
            del section[name]
        elif isinstance(value, ConfigDict):
            section[name] = without_unset(value)
        else:
            complaint = declarations[name].complaint(value)
            if complaint:
                key = f"config.{MIX}.{label}.{name}"
                raise InputError(complaint, key=key, value=repr(value))
    section.name = section.get("name", label)
    section.weight = section.get("weight", WEIGHT.default)


def without_unset(options: ConfigDict) -> ConfigDict:
    """The options that have a value."""
    # An environment's builder then takes its own default.
    return ConfigDict({name: value for name, value in options.items() if value not in (None, "")})


def member_configs(config: ConfigDict) -> dict[str, ConfigDict]:
    """Returns the config of each environment by its label, {"": config} in a run with one."""
    if not config.env.mix:
        return {"": config}
    configs = {}
    for label, section in config.env.mix.items():
        member = config.copy_and_resolve_references().unlock()
        # Otherwise the member would be a mix again.
        member.env.mix = ConfigDict()
        member.env.name = label
        for key, run_key in run_keys().items():
            # Options of the run are for no environment of the mix: one that has none of its own
            # in `env.mix` keeps its defaults.
            if run_key in OPTIONS or key in section:
                run_section, _, name = run_key.partition(".")
                member[run_section][name] = section.get(key, ConfigDict())
        configs[label] = member
    return configs


def member_shares(config: ConfigDict) -> dict[str, float]:
    """Returns each environment's share of the groups, by label; the shares sum to 1."""
    if not config.env.mix:
        return {"": 1.0}
    total = sum(section.weight for section in config.env.mix.values())
    return {label: section.weight / total for label, section in config.env.mix.items()}


def writes_summaries(config: ConfigDict) -> bool:
    """Returns whether episodes may have summaries, or a plan before the first action."""
    environments = [member.env for member in member_configs(config).values()]
    return any(env.context == "summary" or PLANS[env.plan].opening for env in environments)


@contextlib.contextmanager
def name_member_keys(label: str) -> Iterator[None]:
    """Renames an environment's keys in errors to keys of `env.mix`; the label "" leaves them."""
    try:
        yield
    except InputError as error:
        if label:
            # An environment checks its config as that of a whole run, and knows only those keys.
            raise error.with_key(_key_in_mix(error.key, label)) from error
        raise


def _key_in_mix(key: str, label: str) -> str:
    """Returns an environment's key of `env.mix` for a run's key; keys of the run alone stay."""
    for name, run_key in run_keys().items():
        prefix = f"config.{run_key}"
        if key == prefix or key.startswith(f"{prefix}."):
            return f"config.{MIX}.{label}.{name}{key.removeprefix(prefix)}"
    return key


def chooses_environment(key: str) -> bool:
    """Tests whether a key decides which options there are."""
    return key == "env.name" or bool(_NAME.fullmatch(key))


def environment_types(config: ConfigDict) -> dict[str, type]:
    """Returns the types of environments' keys, by dotted key, the keys of `env.mix` among them.

    Raises:
      InputError: There is no such environment.
    """
    types: dict[str, type] = {}
    if not config.env.mix:
        for section, option, kind in _declared_options(config.env.name):
            types[f"{section}.{option}"] = kind
        return types
    for label, member in config.env.mix.items():
        prefix = f"{MIX}.{label}"
        if not isinstance(member, ConfigDict):
            reason = f"give its keys, such as {prefix}.weight=1"
            raise InputError(reason, key=f"config.{prefix}", value=repr(member))
        with name_member_keys(label):
            # A list: the generator would raise outside of the block that renames keys.
            options = list(_declared_options(member.get("name", label)))
        for section, option, kind in options:
            types[f"{prefix}.{section.rpartition('.')[2]}.{option}"] = kind
        for name, key in member_keys().items():
            types[f"{prefix}.{name}"] = type(key.default)
    return types


def member_keys() -> Mapping[str, Key]:
    """The keys of an environment of `env.mix`, beside its options."""
    keys = {"weight": WEIGHT}
    for name, run_key in run_keys().items():
        if run_key in KEYS:
            keys[name] = KEYS[run_key]
    return keys


def _declared_options(name: str) -> Iterator[tuple[str, str, Any]]:
    """Section, name and type of each option of an environment."""
    entry = registry.spec(name)
    for section, field in OPTIONS.items():
        for option, declaration in getattr(entry, field).items():
            yield section, option, declaration.kind
