"""The environments of a config: members of `env.mix`, and what environments declare.

A member has a label, and a config of the run with this environment alone.
"""

import contextlib
import re
from collections.abc import Iterator

from ml_collections import ConfigDict

from gigpo_jax.config.key_types import MIX, OPTIONS
from gigpo_jax.core.errors import InputError
from gigpo_jax.envs import registry

SETTINGS = "rl.settings"  # the algorithm declares its keys
SECTIONS = (*OPTIONS, SETTINGS, MIX)
_NAME = re.compile(rf"{re.escape(MIX)}\.\w+\.name")


def without_unset(options: ConfigDict) -> ConfigDict:
    """The options that have a value."""
    # An environment's builder then takes its own default.
    return ConfigDict({name: value for name, value in options.items() if value not in (None, "")})


def member_configs(config: ConfigDict) -> dict[str, ConfigDict]:
    """Returns the config of each environment by its label, {"": config} in a run with one."""
    if not config.env.mix:
        return {"": config}
    from gigpo_jax.config.members import split_mix

    return split_mix(config)


def member_shares(config: ConfigDict) -> dict[str, float]:
    """Returns each environment's share of the groups, by label; the shares sum to 1."""
    if not config.env.mix:
        return {"": 1.0}
    total = sum(section.weight for section in config.env.mix.values())
    return {label: section.weight / total for label, section in config.env.mix.items()}


def writes_summaries(config: ConfigDict) -> bool:
    """Returns whether episodes may have summaries, or a plan before the first action."""
    environments = [member.env for member in member_configs(config).values()]
    return any(env.context == "summary" or _has_opening(env.plan) for env in environments)


def _has_opening(plan: str) -> bool:
    """Whether the policy writes a kind of plan before its first action."""
    if plan == "none":
        return False
    from gigpo_jax.env_bridge.plans import PLANS

    return PLANS[plan].opening is not None


@contextlib.contextmanager
def name_member_keys(label: str) -> Iterator[None]:
    """Renames an environment's keys in errors to keys of `env.mix`; the label "" leaves them."""
    try:
        yield
    except InputError as error:
        if label:
            # An environment checks its config as if it were alone, and knows only those keys.
            from gigpo_jax.config.members import key_in_mix

            raise error.with_key(key_in_mix(error.key, label)) from error
        raise


def chooses_environment(key: str) -> bool:
    """Tests whether a key decides which options there are."""
    return key == "env.name" or bool(_NAME.fullmatch(key))


def environment_types(name: str) -> dict[str, type]:
    """Returns the types of an environment's options, by dotted key of a run with it alone.

    Raises:
      InputError: There is no such environment.
    """
    entry = registry.spec(name)
    return {
        f"{section}.{option}": declaration.kind
        for section, field in OPTIONS.items()
        for option, declaration in getattr(entry, field).items()
    }
