"""The keys of the environments of `env.mix`: their types, their checks and their defaults."""

import re
from collections.abc import Mapping

from ml_collections import ConfigDict

from gigpo_jax.config.key_types import Key
from gigpo_jax.config.keys import DEFAULTS, KEYS
from gigpo_jax.config.members import run_keys
from gigpo_jax.config.mix import (
    MIX,
    environment_types,
    name_member_keys,
    without_unset,
)
from gigpo_jax.core.errors import InputError
from gigpo_jax.core.settings import POSITIVE

WEIGHT = Key(
    1.0,
    "share of the environment in the groups of an iteration, as a ratio to the other weights",
    POSITIVE,
)


def fill_mix(config: ConfigDict) -> None:
    """Fills in names and weights of the environments, and the name of them all as `env.name`.

    Raises:
      InputError: A label or value of `env.mix` is invalid, or a key has no effect beside it.
    """
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
        reason = "must be a letter, then letters, digits and _"
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


def mix_types(config: ConfigDict) -> dict[str, type]:
    """Returns the types of the keys of `env.mix`, by dotted key.

    Raises:
      InputError: There is no such environment.
    """
    types: dict[str, type] = {}
    for label, member in config.env.mix.items():
        prefix = f"{MIX}.{label}"
        if not isinstance(member, ConfigDict):
            fix = f"give its keys, such as {prefix}.weight=1"
            raise InputError("no section", key=f"config.{prefix}", value=repr(member), fix=fix)
        with name_member_keys(label):
            options = environment_types(member.get("name", label))
        for name, kind in options.items():
            _, section, option = name.split(".")
            types[f"{prefix}.{section}.{option}"] = kind
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
