"""Advice about misspelt keys and flags; a run without a mistake does not import it."""

from collections.abc import Iterable

from gigpo_jax.config.flags import FLAGS
from gigpo_jax.config.keys import KEYS
from gigpo_jax.core.errors import nearest_names


def nearest_keys(name: str, names: Iterable[str]) -> list[str]:
    """At most three keys of `names` that are spelt like a name, or else those that speak of it."""
    candidates = list(names)
    near = nearest_names(name, candidates)
    word = name.rpartition(".")[2].lower().removesuffix("s")
    if near or len(word) < 3:
        return near
    keys = [key for key in candidates if key in KEYS]
    return [key for key in keys if word in KEYS[key].help.lower()][:3]


def nearest_flags(flag: str) -> list[str]:
    """The flags that somebody may have meant with an unknown one."""
    name = flag.lstrip("-").removeprefix("config.")
    # A key without its section first: `--groups` is spelt like `--out`.
    keys = [key for key in KEYS if name and f".{key}".endswith(f".{name}")]
    near = [] if keys else nearest_names(flag, FLAGS)
    return near or [f"--config.{key}" for key in keys or nearest_keys(name, KEYS)]
