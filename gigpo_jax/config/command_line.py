"""The words of a command line -> a config: runs the config file and sets the keys that the words name."""

import ast
import runpy
from collections.abc import Iterator, Sequence
from typing import Any

from ml_collections import ConfigDict

from gigpo_jax.config.keys import KEYS
from gigpo_jax.config.resolve import SECTIONS, declared, unknown_keys
from gigpo_jax.errors import InputError

PREFIX = "--config."
BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


def joined(words: Sequence[str]) -> list[str]:
    """The words of a command line, `--flag value` as one: `--flag=value`."""
    flags: list[str] = []
    for word in words:
        if flags and flags[-1].startswith("-") and "=" not in flags[-1] and not word.startswith("-"):
            flags[-1] += f"={word}"
        else:
            flags.append(word)
    return flags


def load_config(file: str, words: Sequence[str]) -> ConfigDict:
    """Runs a config file and overrides keys; `resolve` has to follow.

    Args:
      file: PATH or PATH:VARIANT; VARIANT is the argument of its `get_config`.
      words: `--config.KEY=VALUE`, as from `joined`.

    Raises:
      InputError: the file fails, a key does not exist, or a value is not of its type.
    """
    if not file:
        raise InputError("--config: missing; for example --config=configs/quickstart.py")
    path, _, variant = file.partition(":")
    try:
        config = runpy.run_path(path)["get_config"](*[variant][: bool(variant)]).copy_and_resolve_references().unlock()
    except Exception as error:  # a config file is a program
        raise InputError(f"--config={file}: {type(error).__name__}: {str(error).strip()}") from error
    overrides = dict(_override(word) for word in words)  # the last one wins
    # These names decide which options and settings there are.
    first = ("env.name", "rl.algorithm", "rl.settings.base")
    for key in sorted(overrides, key=lambda key: first.index(key) if key in first else len(first)):
        _set(config, key, overrides[key])
    return config


def _override(word: str) -> tuple[str, str]:
    key, equals, text = word.removeprefix(PREFIX).partition("=")
    if not word.startswith(PREFIX) or not equals:
        raise InputError(f"{word!r}: no such flag; write --config.KEY=VALUE, or see --help")
    return key, text


def _set(config: ConfigDict, key: str, text: str) -> None:
    options = declared(config) if key not in ("env.name", "rl.algorithm") else {}
    mappings = [name for name, kind in options.items() if kind is dict]
    if key in KEYS:
        kind = type(KEYS[key].default)
        unset = KEYS[key].auto and text == "auto"
    elif key in options:
        kind, unset = options[key], text == ""
    elif key in SECTIONS:
        kind, unset = dict, False
    else:
        for error in unknown_keys(config, [key]):
            raise error
        kind, unset = object, False
    *path, last = key.split(".")
    holder = config
    for part in path:
        if part not in holder and any(key.startswith(name) for name in mappings):
            holder[part] = ConfigDict()
        holder = holder[part]
    with config.ignore_type():
        holder[last] = None if unset else _read(key, text, kind)


def _read(key: str, text: str, kind: Any) -> Any:
    try:
        if kind is str:
            return text
        if kind is bool:
            return BOOLEANS[text.lower()]
        if kind in (int, float):
            return kind(text)
        value = ast.literal_eval(text)
        if kind is dict:
            return ConfigDict(dict(value))
    except (KeyError, ValueError, TypeError, SyntaxError, MemoryError, RecursionError) as error:
        if kind is object:
            return text
        raise InputError(f"config.{key}={text!r}: must be of type {kind.__name__}") from error
    if kind is tuple and not isinstance(value, tuple | list):
        value = (value,)
    return tuple(value) if isinstance(value, list) else value


def key_help() -> Iterator[str]:
    """A line for each key: name, default, meaning."""
    for name, key in KEYS.items():
        yield f"  {f'{name}={key.default}':<44} {key.help}"
