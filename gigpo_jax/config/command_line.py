"""From command line to config: runs the config file and sets keys of `--config.KEY=VALUE`."""

import ast
import contextlib
import inspect
import runpy
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from gigpo_jax.config import mix
from gigpo_jax.config.keys import AUTO, DEFAULTS, KEYS
from gigpo_jax.config.resolve import declared_types, unknown_keys
from gigpo_jax.core import packaged
from gigpo_jax.core.errors import InputError

PREFIX = "--config."
BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


def join_flags(words: Sequence[str]) -> list[str]:
    """Joins `--flag value` to one word, `--flag=value`."""
    flags: list[str] = []
    for word in words:
        needs_value = bool(flags) and flags[-1].startswith("-") and "=" not in flags[-1]
        # A negative number looks like a flag, so it needs the "=".
        if needs_value and not word.startswith("-"):
            flags[-1] += f"={word}"
        else:
            flags.append(word)
    return flags


def load_config(file: str, words: Sequence[str]) -> ConfigDict:
    """Runs a config file and overrides keys; `resolve` has to follow.

    Args:
      file: NAME of a packaged config or PATH, with :VARIANT for the argument of its `get_config`;
        or the config.json of a run.
      words: Words `--config.KEY=VALUE`, as from `join_flags`.

    Raises:
      InputError: The file fails, a key does not exist, or a value is not of its type.
    """
    if not file:
        raise InputError("missing", key="--config", fix="for example --config=quickstart")
    if Path(file).suffix == ".json":
        from gigpo_jax.config.saved import read_saved_config

        config = read_saved_config(Path(file))
    else:
        config = _run_config_file(file)
    # Words with the name of an environment or algorithm come first: they decide which options and
    # settings there are.
    ranks = (
        mix.MIX.__eq__,
        mix.chooses_environment,
        "rl.algorithm".__eq__,
        "rl.settings.base".__eq__,
    )
    overrides = dict(split_override(word) for word in words)  # the last one wins
    # `sorted` is stable: all other keys keep the order of the command line.
    for key in sorted(overrides, key=lambda key: [not rank(key) for rank in ranks]):
        _set_key(config, key, overrides[key])
    if "env.name" in overrides:
        from gigpo_jax.config.leftovers import check_environment_options

        check_environment_options(config, overrides)
    return config


def _run_config_file(file: str) -> ConfigDict:
    """Runs `get_config` of a config file; returns an unlocked copy."""
    name, _, variant = file.partition(":")
    path = _find_config_file(name)
    try:
        with _imports_beside(path):
            # Run, not imported: two configs of one name in different folders would share a module.
            module = runpy.run_path(str(path))
            if "get_config" not in module:
                from gigpo_jax.core.spelling import nearest_names

                near = ", ".join(nearest_names("get_config", module)) or "none"
                reason = f"no get_config in {path}"
                raise InputError(reason, key="--config", value=file, fix=f"nearest: {near}")
            get_config = module["get_config"]
            if variant and not inspect.signature(get_config).parameters:
                raise InputError("has no variants", key="--config", value=file, fix=f"use {name}")
            config = get_config(variant) if variant else get_config()
            # Unlocked: options of environments are set below, and `resolve` finds misspelt keys.
            return config.copy_and_resolve_references().unlock()
    except InputError:
        raise
    except Exception as error:  # a config file is a program
        if variant and isinstance(error, ValueError) and str(error):
            # What a config says of its variant; the name of a Python type would not help.
            raise InputError(str(error).strip(), key="--config", value=file) from error
        reason = f"{type(error).__name__}: {str(error).strip()}"
        raise InputError(reason, key="--config", value=file) from error


def _find_config_file(name: str) -> Path:
    folder = packaged.ROOT / "configs"
    # The user's file first, also if a packaged config has the same path.
    for path in (Path(name), packaged.ROOT / name, folder / f"{name}.py"):
        if path.is_file():
            return path
    from gigpo_jax.config.nearest import describe_configs

    fix = describe_configs(name, folder)
    raise InputError("no such file or packaged config", key="--config", value=name, fix=fix)


@contextlib.contextmanager
def _imports_beside(path: Path) -> Iterator[None]:
    """Lets a config file import its neighbours, and packaged configs as `configs.NAME`."""
    previous_path = sys.path
    # Neighbours first, packaged configs last: no packaged file hides a module of the user.
    sys.path = [str(path.parent.absolute()), *previous_path, str(packaged.ROOT)]
    try:
        yield
    finally:
        # A later import must not find a neighbour of the config by accident.
        sys.path = previous_path


def split_override(word: str) -> tuple[str, str]:
    """Splits a word `--config.KEY=VALUE`; raises InputError for another one."""
    key, equals, text = word.removeprefix(PREFIX).partition("=")
    if not word.startswith(PREFIX) or not equals:
        from gigpo_jax.config.nearest import explain_flag

        raise explain_flag(word)
    return key, text


def _set_key(config: ConfigDict, key: str, text: str) -> None:
    """Sets a config's key to a command-line text."""
    if key.startswith(f"{mix.MIX}."):
        label = key.split(".")[2]
        # A label may appear on the command line alone.
        if label not in config.env.mix:
            config.env.mix[label] = ConfigDict()
    options: dict[str, type] = {}
    # With an unknown environment or algorithm there are no declarations to read yet.
    chooses_options = key == "rl.algorithm" or mix.chooses_environment(key)
    if not chooses_options:
        options = declared_types(config)
    mappings = tuple(name for name, kind in options.items() if kind is dict)
    kind: Any = str
    is_unset = False
    if key in KEYS:
        kind = type(DEFAULTS[key])
        is_unset = key in AUTO and text == "auto"
    elif key in options:
        kind = options[key]
        # An empty text sets an option back to its default, also one that the config file has set.
        is_unset = text == ""
    elif key in mix.SECTIONS:
        kind = dict
    elif not chooses_options:
        for error in unknown_keys(config, [key]):
            raise error
        # A key below an option that is a mapping: it is the user's own, and of any type.
        kind = object

    *sections, last = key.split(".")
    section = config
    for name in sections:
        # Sections are made for declared keys only: a misspelt one must not appear as a new section.
        if name not in section and (key in options or key.startswith(mappings)):
            section[name] = ConfigDict()
        section = section[name]
    # A ConfigDict keeps the type of a key's first value; None for "auto" and options have another.
    with config.ignore_type():
        section[last] = None if is_unset else parse_value(key, text, kind)


def parse_value(key: str, text: str, kind: Any) -> Any:
    """Reads a value of a type.

    Args:
      key: Its config key, for the error.
      text: The value as the user writes it.
      kind: Its type; `object` stands for any.

    Raises:
      InputError: The text is no such value.
    """
    try:
        # Before literal_eval: a path or a label is text as it stands.
        if kind is str:
            return text
        if kind is bool:
            return BOOLEANS[text.lower()]
        if kind in (int, float):
            return kind(text)
        # Literals only: a value of a command line is never run as code.
        value = ast.literal_eval(text)
        if kind is dict:
            return ConfigDict(dict(value))
    except (KeyError, ValueError, TypeError, SyntaxError, MemoryError, RecursionError) as error:
        if kind is object:
            return text
        # log.to=wandb is log.to=('wandb',): a shell takes away the quotes of the second form.
        if kind is tuple and key in KEYS and not KEYS[key].complaint((text,)):
            return (text,)
        reason = f"must be of type {kind.__name__}"
        raise InputError(reason, key=f"config.{key}", value=repr(text)) from error
    # engine.prefill_rows=16 is (16,), as with log.to above.
    if kind is tuple and not isinstance(value, tuple | list):
        return (value,)
    return tuple(value) if isinstance(value, list) else value
