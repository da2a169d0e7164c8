"""The words of a command line -> a config: runs the config file and sets the keys that the words name."""

import argparse
import ast
import contextlib
import runpy
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from gigpo_jax.config import mix, packaged
from gigpo_jax.config.keys import KEYS
from gigpo_jax.config.resolve import SECTIONS, declared, unknown_keys
from gigpo_jax.config.tree import flat
from gigpo_jax.errors import InputError, nearest

PREFIX = "--config."
USAGE = "gigpo train|eval|sft|serve|export|preflight --config=NAME|FILE[:VARIANT] [--workdir=DIR] [--config.KEY=V ...]"
HELP = """
commands (python -m gigpo_jax is the same program):
{modes}
  compare, credit, envs, inspect: gigpo COMMAND --help

examples:
  gigpo train --config=quickstart --workdir=runs/quickstart
  gigpo train --config=alfworld:7b --config.model.path=DIR --config.train.groups=8
  gigpo eval --config=quickstart --workdir=runs/quickstart
  gigpo train --config=quickstart --print_config

pages: docs/guide.md (modes, metrics, faults), docs/configuration.md (keys: allowed values, options of the
environments), docs/environments.md (your own environment), docs/algorithm.md (algorithms)

keys, with their defaults:
{keys}"""
BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


def make_parser(modes: Mapping[str, str]) -> argparse.ArgumentParser:
    """The flags of a run, but for those of keys; `modes` has what each mode does."""
    parser = argparse.ArgumentParser(
        usage=USAGE, allow_abbrev=False, exit_on_error=False, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.epilog = _help_text(modes)
    parser.add_argument("--config", default="", metavar="NAME|FILE", help="the experiment: a packaged config or a file")
    parser.add_argument("--mode", choices=list(modes), default="train", help="in place of a command, see below")
    parser.add_argument("--workdir", default="", metavar="DIR", help="of the run; default: runs/<name of the config>")
    parser.add_argument("--out", default="", metavar="PATH", help="of what a command writes")
    parser.add_argument("--push", default="", metavar="ORG/NAME", help="of export: a model of the Hub that gets it too")
    parser.add_argument("--target", default="", metavar="NAME", help="of preflight: v5e-8, h100x8, ...")
    parser.add_argument("--initial", action="store_true", help="use model.path; the workdir holds no run")
    parser.add_argument("--print_config", action="store_true", help="print every key's value and its origin, and exit")
    return parser


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
      file: NAME or PATH, or one with :VARIANT, the argument of its `get_config`; a NAME is one of the packaged configs.
      words: `--config.KEY=VALUE`, as from `joined`.

    Raises:
      InputError: the file fails, a key does not exist, or a value is not of its type.
    """
    if not file:
        raise InputError("--config: missing; for example --config=quickstart")
    name, _, variant = file.partition(":")
    path = _config_file(name)
    try:
        with _imports_beside(path):
            names = runpy.run_path(str(path))
            if "get_config" not in names:
                near = nearest("get_config", names)
                raise InputError(f"--config={file}: no get_config in {path}; nearest: {', '.join(near) or 'none'}")
            config = names["get_config"](*[variant][: bool(variant)]).copy_and_resolve_references().unlock()
    except InputError:
        raise
    except Exception as error:  # a config file is a program
        raise InputError(f"--config={file}: {type(error).__name__}: {str(error).strip()}") from error
    overrides = dict(_override(word) for word in words)  # the last one wins
    # These names decide which options and settings there are.
    ranks = (mix.MIX.__eq__, mix.names_an_environment, "rl.algorithm".__eq__, "rl.settings.base".__eq__)
    for key in sorted(overrides, key=lambda key: [not rank(key) for rank in ranks]):
        _set(config, key, overrides[key])
    return config


def _config_file(name: str) -> Path:
    ours = packaged.ROOT / "configs"
    for path in (Path(name), packaged.ROOT / name, ours / f"{name}.py"):
        if path.is_file():
            return path
    known = sorted(path.stem for path in ours.glob("*.py"))
    files = {path.stem: str(path) for path in Path(name).parent.glob("*.py")} if Path(name).suffix else {}
    near = nearest(Path(name).stem, {*files, *known}) or known
    shown = ", ".join(files.get(stem, stem) for stem in near)
    raise InputError(f"--config={name}: no such file or packaged config; nearest: {shown}")


@contextlib.contextmanager
def _imports_beside(path: Path) -> Iterator[None]:
    """Lets a config file import its neighbours, as a script can, and the packaged configs as `configs.NAME`."""
    before = sys.path
    sys.path = [str(path.parent.absolute()), *before, str(packaged.ROOT)]
    try:
        yield
    finally:
        sys.path = before


def _override(word: str) -> tuple[str, str]:
    key, equals, text = word.removeprefix(PREFIX).partition("=")
    if not word.startswith(PREFIX) or not equals:
        raise InputError(f"{word!r}: no such flag; write --config.KEY=VALUE, or see --help")
    return key, text


def _set(config: ConfigDict, key: str, text: str) -> None:
    names = key == "rl.algorithm" or mix.names_an_environment(key)
    if key.startswith(f"{mix.MIX}.") and (label := key.split(".")[2]) not in config.env.mix:
        config.env.mix[label] = ConfigDict()
    options = {} if names else declared(config)
    mappings = [name for name, kind in options.items() if kind is dict]
    kind: Any = str
    unset = False
    if key in KEYS:
        kind, unset = type(KEYS[key].default), KEYS[key].auto and text == "auto"
    elif key in options:
        kind, unset = options[key], text == ""
    elif key in SECTIONS:
        kind = dict
    elif not names:
        for error in unknown_keys(config, [key]):
            raise error
        kind = object
    *path, last = key.split(".")
    holder = config
    for part in path:
        if part not in holder and (key in options or any(key.startswith(name) for name in mappings)):
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


def origins(words: Sequence[str], asked: ConfigDict, resolved: ConfigDict) -> Iterator[str]:
    """A line for each key of a config: its value, and where that came from.

    Args:
      words: as for `load_config`.
      asked: its result.
      resolved: from `resolve`.
    """
    given = [_override(word)[0] for word in words]
    before = flat(asked)
    defaults = flat({name: key.default for name, key in KEYS.items()})
    others = {"env.name": mix.MIX, "eval.trials": f"agent {resolved.agent}"}
    for name, value in flat(resolved).items():
        if value == before.get(name) and any(name == key or name.startswith(f"{key}.") for key in given):
            origin = "command line"
        elif value == before.get(name) and value != defaults.get(name):
            origin = "config file"
        elif value == defaults.get(name) or name.startswith(f"{mix.MIX}."):
            origin = "default"
        else:
            origin = others.get(name, f"algorithm {resolved.rl.algorithm}")
        yield f"{f'{name}={value}':<56} {origin}"


def _help_text(modes: Mapping[str, str]) -> str:
    """What --help says below the flags: commands, examples, pages, and a line for each key."""
    lines = [f"  {name:<10}{text}" for name, text in modes.items()]
    return HELP.format(modes="\n".join(lines), keys="\n".join(key_help()))


def key_help() -> Iterator[str]:
    """A line for each key: name, default, meaning."""
    for name, key in KEYS.items():
        yield f"  {f'{name}={key.default}':<44} {key.help}"
