"""The environments of `env.mix`: which keys of the run they replace, and the config of each."""

import functools
from collections.abc import Mapping

from ml_collections import ConfigDict

from gigpo_jax.config.key_types import MIX, OPTIONS
from gigpo_jax.config.keys import KEYS


@functools.cache
def run_keys() -> Mapping[str, str]:
    """KEY of env.mix.LABEL.KEY -> the key of the run that it replaces for this environment."""
    mixed_keys = [name for name, key in KEYS.items() if key.mixes]
    return {name.rpartition(".")[2]: name for name in (*mixed_keys, *OPTIONS)}


def key_in_mix(key: str, label: str) -> str:
    """Returns an environment's key of `env.mix` for a run's key; keys of the run alone stay."""
    for name, run_key in run_keys().items():
        prefix = f"config.{run_key}"
        if key == prefix or key.startswith(f"{prefix}."):
            return f"config.{MIX}.{label}.{name}{key.removeprefix(prefix)}"
    return key


def split_mix(config: ConfigDict) -> dict[str, ConfigDict]:
    """Returns the config of each environment of a mix by its label."""
    configs = {}
    for label, section in config.env.mix.items():
        member = config.copy_and_resolve_references().unlock()
        # Otherwise the member would be a mix again.
        member.env.mix = ConfigDict()
        member.env.name = label
        for key, run_key in run_keys().items():
            if key in section:
                run_section, _, name = run_key.partition(".")
                member[run_section][name] = section[key]
        configs[label] = member
    return configs
