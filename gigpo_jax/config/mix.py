"""`env.mix`: several environments in one run. Each has a label, and a config of the run with this environment alone."""

import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ml_collections import ConfigDict

from gigpo_jax.config.keys import KEYS, WEIGHT, Key
from gigpo_jax.envs import registry
from gigpo_jax.errors import InputError

# Sections whose keys an environment declares -> the field of `registry.Environment` with the declaration.
OPTIONS = {"env.options": "options", "env.generate": "generate_options", "sft.demonstrator": "expert_options"}
MIX = "env.mix"
# env.mix.LABEL.KEY -> the key of the run that has another value for this environment
OWN = {name.rpartition(".")[2]: name for name in (*(name for name, key in KEYS.items() if key.mixes), *OPTIONS)}
_NAME = re.compile(rf"{re.escape(MIX)}\.\w+\.name")


def fill(config: ConfigDict) -> None:
    """Gives each environment its name and weight, and `env.name` the name of all; raises InputError."""
    known = keys()
    for label, own in config.env.mix.items():
        if not re.fullmatch(r"[A-Za-z]\w*", label):
            raise InputError(f"config.{MIX}.{label}: a label is a letter, then letters, digits and _; rename it")
        if label == "all":
            raise InputError(f"config.{MIX}.all: that is the name of the total in results; rename it")
        for name, value in list(own.items()):
            if value is None:
                del own[name]
            elif isinstance(value, ConfigDict):
                own[name] = without_unset(value)
            elif complaint := known[name].complaint(value):
                raise InputError(f"config.{MIX}.{label}.{name}={value!r}: {complaint}")
        own.name, own.weight = own.get("name", label), own.get("weight", WEIGHT.default)
    if config.env.mix:
        names = "+".join(config.env.mix)
        if config.env.name not in (KEYS["env.name"].default, names):
            raise InputError(f"config.env.name={config.env.name!r}: not read with {MIX}; leave it out")
        if config.eval.panel:
            raise InputError(f"config.eval.panel={config.eval.panel!r}: not read with {MIX}; use {MIX}.LABEL.panel")
        config.env.name = names


def without_unset(options: ConfigDict) -> ConfigDict:
    """The options that have a value."""
    return ConfigDict({name: value for name, value in options.items() if value not in (None, "")})


def members(config: ConfigDict) -> dict[str, ConfigDict]:
    """The config of each environment by its label; {"": config} in a run with one."""
    if not config.env.mix:
        return {"": config}
    out = {}
    for label, own in config.env.mix.items():
        member = config.copy_and_resolve_references().unlock()
        member.env.mix, member.env.name = ConfigDict(), label
        for key, name in OWN.items():
            section, _, last = name.partition(".")
            if name in OPTIONS or key in own:
                member[section][last] = own.get(key, ConfigDict())
        out[label] = member
    return out


def shares(config: ConfigDict) -> dict[str, float]:
    """The fraction of the groups that are of each environment, by its label; they sum to 1."""
    total = sum(own.weight for own in config.env.mix.values())
    return {label: own.weight / total for label, own in config.env.mix.items()} or {"": 1.0}


@contextlib.contextmanager
def own_keys(label: str) -> Iterator[None]:
    """In messages of an `InputError`, keys of the run become those of an environment of `env.mix`; "": they stay."""
    try:
        yield
    except InputError as error:
        text = str(error)
        for key, name in OWN.items() if label else ():
            text = text.replace(f"config.{name}", f"config.{MIX}.{label}.{key}")
        raise InputError(text) from error


def names_an_environment(key: str) -> bool:
    """Whether a key decides which options there are."""
    return key == "env.name" or bool(_NAME.fullmatch(key))


def declared(config: ConfigDict) -> dict[str, type]:
    """The types of the keys that the environments of a config declare, by dotted key, and of those of `env.mix`.

    Raises:
      InputError: there is no such environment.
    """
    if not config.env.mix:
        return {f"{section}.{name}": kind for section, name, kind in _options(config.env.name)}
    out: dict[str, type] = {}
    for label, own in config.env.mix.items():
        if not isinstance(own, ConfigDict):
            raise InputError(f"config.{MIX}.{label}={own!r}: give its keys, such as {MIX}.{label}.weight=1")
        with own_keys(label):
            options = list(_options(own.get("name", label)))
        start = f"{MIX}.{label}"
        out |= {f"{start}.{section.rpartition('.')[2]}.{name}": kind for section, name, kind in options}
        out |= {f"{start}.{name}": type(key.default) for name, key in keys().items()}
    return out


def keys() -> Mapping[str, Key]:
    """The keys of an environment of `env.mix`, beside its options."""
    return {"weight": WEIGHT} | {key: KEYS[name] for key, name in OWN.items() if name in KEYS}


def _options(name: str) -> Iterator[tuple[str, str, Any]]:
    """Section, name and type of each option of an environment."""
    spec = registry.spec(name)
    for section, field in OPTIONS.items():
        for option, declaration in getattr(spec, field).items():
            yield section, option, declaration.kind
