"""The declarations of keys and of sets of keys."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ml_collections import ConfigDict

from gigpo_jax.core.settings import Rule, Setting

# Sections whose keys an environment declares -> the field of `entry_types.Environment` with the
# declaration.
OPTIONS = {
    "env.options": "options",
    "env.generate": "generate_options",
    "sft.demonstrator": "expert_options",
}
MIX = "env.mix"

DECAY = Rule("at least 0 and below 1", lambda value: 0 <= value < 1)
PORT = Rule("from 0 to 65535", lambda value: 0 <= value < 2**16)


@dataclass(frozen=True)
class Key(Setting):
    """The declaration of a key.

    Attributes:
      may_change: True if a resumed run may change it: it decides where and how a run works, not
        its results.
      may_grow: True if a resumed run may raise it.
      auto: True if it is unset (None) until `resolve`, which takes the algorithm's own default
        where there is one.
      mixes: True if an environment of `env.mix` may have another value, as env.mix.LABEL.KEY.
    """

    may_change: bool = False
    may_grow: bool = False
    auto: bool = False
    mixes: bool = False


@dataclass(frozen=True)
class KeySet:
    """What a part of a run adds to the config.

    Attributes:
      keys: Its keys by dotted name.
      check: (config, whether parameters will be updated) -> None. It checks the whole config and
        raises InputError.
      check_member: (config with one environment alone, config of the run) -> None. It checks
        each environment of a run.
    """

    keys: Mapping[str, Key]
    check: Callable[[ConfigDict, bool], None] | None = None
    check_member: Callable[[ConfigDict, ConfigDict], None] | None = None
