"""Options of a config file's environment that the command line replaced by another one."""

from collections.abc import Mapping

from ml_collections import ConfigDict

from gigpo_jax.config import mix
from gigpo_jax.config.keys import flatten
from gigpo_jax.config.resolve import unknown_keys
from gigpo_jax.core.errors import InputError


def check_environment_options(config: ConfigDict, overrides: Mapping[str, str]) -> None:
    """Refuses options that a config file has for an environment which the command line replaced.

    Raises:
      InputError: The environment of the command line has no such options.
    """
    sections = tuple(f"{section}." for section in mix.OPTIONS)
    # Misspelt ones of the command line are found by `resolve`.
    names = [name for name in flatten(config) if name.startswith(sections)]
    names = [name for name in names if name not in overrides]
    unknown = [error.key.removeprefix("config.") for error in unknown_keys(config, names)]
    if not unknown:
        return
    flags = [f"--config.{section}={{}}" for section in mix.OPTIONS]
    flags = [
        flag for flag in flags if any(f"--config.{key}".startswith(flag[:-3]) for key in unknown)
    ]
    raise InputError(
        f"the config file has options of another environment ({', '.join(unknown)})",
        key="config.env.name",
        value=config.env.name,
        fix=f"add {' '.join(flags)} to leave them out",
    )
