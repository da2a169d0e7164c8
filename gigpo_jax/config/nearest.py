"""Advice about misspelt keys and flags; a run without a mistake does not import it."""

import difflib
from collections.abc import Iterable
from pathlib import Path

from gigpo_jax.config.flags import FLAGS
from gigpo_jax.config.keys import KEYS
from gigpo_jax.core.errors import InputError
from gigpo_jax.core.spelling import nearest_names


def nearest_keys(name: str, names: Iterable[str]) -> list[str]:
    """At most three keys of `names` that are spelt like a name, or else those that speak of it."""
    candidates = list(names)
    near = nearest_names(name, candidates)
    word = name.rpartition(".")[2].lower().removesuffix("s")
    if near or len(word) < 3:
        return near
    keys = [key for key in candidates if key in KEYS]
    return [key for key in keys if word in KEYS[key].help.lower()][:3]


def describe_configs(name: str, folder: Path) -> str:
    """Names configs of a folder, and files beside a path, that are spelt like a name, or else all.

    Files without `get_config` are no configs: others are made from them.
    """
    packaged = sorted(
        path.stem for path in folder.glob("*.py") if "\ndef get_config(" in path.read_text()
    )
    neighbours = {}
    if Path(name).suffix:
        neighbours = {path.stem: str(path) for path in Path(name).parent.glob("*.py")}
    near = nearest_names(Path(name).stem, {*neighbours, *packaged})
    if not near:
        return f"known are {', '.join(packaged)}"
    return f"nearest: {', '.join(neighbours.get(stem, stem) for stem in near)}"


def explain_flag(word: str) -> InputError:
    """The error of a word of the command line that sets no key."""
    flag = word.partition("=")[0]
    if flag in FLAGS:
        return InputError("no flag of this command", key=repr(flag), fix="leave it out")
    near = _nearest_flags(flag)
    fix = f"nearest: {', '.join(near)}" if near else "write --config.KEY=VALUE, or see --help"
    return InputError("no such flag", key=repr(word), fix=fix)


def _nearest_flags(flag: str) -> list[str]:
    name = flag.lstrip("-").removeprefix("config.")
    # A key without its section first: `--groups` is spelt like `--out`.
    keys = [key for key in KEYS if name and f".{key}".endswith(f".{name}")]
    # A letter more, such as `--targets`.
    near = difflib.get_close_matches(flag, FLAGS, cutoff=0.9)
    if not near and not keys:
        near = nearest_names(flag, FLAGS)
    if not near and not keys:
        keys = nearest_keys(name, KEYS)
    return [*near, *(f"--config.{key}" for key in keys)]
