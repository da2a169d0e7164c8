"""Where the values of a config come from, for --print_config."""

from collections.abc import Iterator, Sequence

from ml_collections import ConfigDict

from gigpo_jax.config import mix
from gigpo_jax.config.command_line import split_override
from gigpo_jax.config.keys import DEFAULTS, flatten


def describe_origins(
    words: Sequence[str], loaded: ConfigDict, resolved: ConfigDict
) -> Iterator[str]:
    """Yields a line of value and origin for each key.

    Args:
      words: Words of the command line, as for `load_config`.
      loaded: Config of `load_config`.
      resolved: Config of `resolve`.
    """
    overrides = tuple(split_override(word)[0] for word in words)
    user_values = flatten(loaded)
    defaults = flatten(DEFAULTS)
    deciding_keys = {"env.name": mix.MIX, "eval.trials": f"agent {resolved.agent}"}
    for name, value in flatten(resolved).items():
        is_users = value == user_values.get(name)
        # With a dot at the end: env.mix.a must not match env.mix.ab.
        if is_users and f"{name}.".startswith(tuple(f"{key}." for key in overrides)):
            origin = "command line"
        # A config file that sets a default says nothing else than the default.
        elif is_users and value != defaults.get(name):
            origin = "config file"
        elif value == defaults.get(name) or name.startswith(f"{mix.MIX}."):
            origin = "default"
        else:
            origin = deciding_keys.get(name, f"algorithm {resolved.rl.algorithm}")
        yield f"{f'{name}={value}':<56} {origin}"
