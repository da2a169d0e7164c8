"""Errors about keys that do not exist; a run without a mistake does not import it."""

from collections.abc import Sequence

from ml_collections import ConfigDict

from gigpo_jax.config import mix
from gigpo_jax.config.keys import flatten
from gigpo_jax.config.nearest import nearest_keys
from gigpo_jax.config.removed_keys import find_moved, find_removed
from gigpo_jax.core.errors import InputError


def explain_unknown(config: ConfigDict, name: str, valid_names: Sequence[str]) -> InputError:
    """The error of an unknown key: what became of it, or the nearest valid names.

    Args:
      config: Config as far as it is set; it names environments and algorithm.
      name: Dotted key.
      valid_names: Dotted keys that the config may have.
    """
    key = f"config.{name}"
    values = flatten(config)
    removed = find_removed(name, values)
    if removed:
        return InputError(f"no such key any more: {removed.fate}", key=key, fix="leave it out")
    moved = find_moved(name, values)
    if moved != name:
        return InputError("no such key any more", key=key, fix=f"use config.{moved}")
    section = next((section for section in mix.SECTIONS if name.startswith(f"{section}.")), "")
    # Of the same section: an option is never a misspelt key of the run.
    near = nearest_keys(name, [valid for valid in valid_names if valid.startswith(section)])
    fix = f"nearest: {', '.join(near)}" if near else "gigpo keys lists them"
    return InputError(f"no such key{_describe_owner(config, section)}", key=key, fix=fix)


def _describe_owner(config: ConfigDict, section: str) -> str:
    """Names for a message what declares the keys of a section; "" for the program itself."""
    if section == mix.SETTINGS:
        return f" of the algorithm {config.rl.algorithm}"
    if section not in mix.OPTIONS:
        return ""
    if config.env.mix:
        return f" of a run with {mix.MIX}"
    return f" of the environment {config.env.name}"
