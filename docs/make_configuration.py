"""Writes docs/configuration.md from the table of keys and the environments' declarations.

`make docs` runs it; the page is not committed.
"""

from pathlib import Path

from gigpo_jax.config import mix
from gigpo_jax.config.core_keys import CORE
from gigpo_jax.config.key_types import Key
from gigpo_jax.config.keys import KEY_SETS
from gigpo_jax.config.mix_keys import WEIGHT
from gigpo_jax.core.settings import Setting
from gigpo_jax.envs.entry_types import Option
from gigpo_jax.envs.registry import ENVIRONMENTS, INCOMING
from gigpo_jax.rl.algorithms import ALGORITHMS

TABLE = "| key | default | values | meaning |\n|---|---|---|---|\n"
HEAD = """# Configuration

`--config=` takes a file, or the name of a packaged config. A packaged config is a file under `configs/`, such as
`quickstart`, or `alfworld:7b` with a variant.

## Config files

A config file has a function `get_config()`. It starts from `gigpo_jax.config.default_config()`, changes what its
experiment needs, and locks the result. From any folder it can import its neighbours, and packaged configs:
`from configs.quickstart import get_config`. `model.path` is looked up in the working directory, then in the package.

## The command line

Any key can be changed on the command line: `--config.train.groups=8`. Tuples have Python's notation:
`--config.engine.prefill_buckets="(64, 128)"`. An unknown key fails with the closest valid keys, and an invalid value
with the allowed ones. Both fail before anything is loaded, with exit status 2.

`--print_config` prints all values of a command, and where each comes from: default, config file, command line or
algorithm.

## Automatic defaults

A default "auto" is decided at the start. It is the algorithm's own default if there is one (docs/algorithm.md), and
otherwise the value shown. A value that you give replaces it; a value that the algorithm does not allow is refused.
`--config.KEY=auto` removes the value of a config file. `WORKDIR/config.json` holds the values that were used.

## Keys that may change

A resumed run must have the same values as before, with two exceptions: keys marked with * may change, and keys marked
with + may grow. Keys marked with ~ may have other values for single environments of `env.mix`
([below](#several-environments)).

## All keys

`gigpo keys PATTERN` prints keys, options and settings with PATTERN in their name or meaning.

"""
SETS_HEAD = """
## Sets of keys

Most runs need none of these.
"""
SECTIONS = """
## Options of the environments

`env.options` is passed to the environment; `env.generate` makes its data once, in the user's cache folder, in place of
`env.options.data`; `sft.demonstrator` makes the expert worse on purpose. An option that is not set is not passed.
"""
MIX = """
## Several environments

`env.mix` has the environments of a run with [several](tasks.md#several-environments-in-one-run), each under a
label of your own. `env.mix.LABEL.KEY` is its value of a key marked with ~, by the last part of its name, such as
`env.mix.LABEL.max_steps`; a key that is not given has the value of the run. `env.mix.LABEL.options`, `generate` and
`demonstrator` are its `env.options`, `env.generate` and `sft.demonstrator`. `name` is the label if it is not given.

| key | default | values | meaning |
|---|---|---|---|
"""
SETTINGS = """
## Settings of the algorithms

`rl.settings` has the settings of `rl.algorithm` alone (docs/algorithm.md). An algorithm with a setting `base` has the
settings of its base too.

| algorithm | key | default | values | meaning |
|---|---|---|---|---|
"""

# Pages of environments whose names are others.
PAGES = {
    "example": "environments",
    **dict.fromkeys(("blackjack", "ezpoints", "numberline", "points24", "sokoban"), "vision"),
}

# Requirements that are too long for a cell.
LONG_REQUIREMENTS = {
    "rl.algorithm": "a name of the [table of algorithms](algorithms.md), or module:NAME",
}


def page() -> str:
    """The whole page."""
    parts = [HEAD, TABLE, *(_row(name, key) for name, key in CORE.items()), SETS_HEAD]
    for title, key_set in KEY_SETS.items():
        title = title[0].upper() + title[1:]
        parts += [
            f"\n### {title}\n\n{TABLE}",
            *(_row(name, key) for name, key in key_set.keys.items()),
        ]
    parts.append(SECTIONS)
    incoming = {f"{name}:ID": make_entry("ID") for name, make_entry in INCOMING.items()}
    for name, environment in sorted({**ENVIRONMENTS, **incoming}.items()):
        parts.append(
            f"\n### {name}\n\n{_link_page(name)}\n\n| key | default | meaning |\n|---|---|---|\n"
        )
        parts.append(f"| `env.anchor` | | {environment.anchor.requirement} |\n")
        for section, field in mix.OPTIONS.items():
            parts += [
                _option_row(f"{section}.{key}", option)
                for key, option in getattr(environment, field).items()
            ]
    parts += [MIX, _row(f"{mix.MIX}.LABEL.weight", WEIGHT), SETTINGS]
    for name, algorithm in ALGORITHMS.items():
        parts += [_setting_row(name, key, setting) for key, setting in algorithm.settings.items()]
    return "".join(parts)


def _link_page(name: str) -> str:
    """A sentence that links the page of an environment."""
    stem = name.partition(":")[0]
    page = f"{PAGES.get(stem, stem)}.md"
    return f"Described in [{page}]({page})."


def _row(name: str, key: Key) -> str:
    default = f"auto: {_show(key.default)}" if key.auto else _show(key.default)
    marks = " *" * key.may_change + " +" * key.may_grow + " ~" * key.mixes
    values = LONG_REQUIREMENTS.get(name, key.rule.requirement)
    return f"| `{name}`{marks} | {default} | {values} | {key.help} |\n"


def _option_row(name: str, option: Option) -> str:
    return f"| `{name}` | {'' if option.default is None else _show(option.default)} | {option.help} |\n"


def _setting_row(algorithm: str, name: str, setting: Setting) -> str:
    return f"| {algorithm} | `rl.settings.{name}` | {_show(setting.default)} | {setting.rule.requirement} | {setting.help} |\n"


def _show(value: object) -> str:
    return f"`{value!r}`".replace("'", '"').replace("1e-06", "1e-6").replace("1000000.0", "1e6")


if __name__ == "__main__":
    Path(__file__).with_name("configuration.md").write_text(page(), encoding="utf-8")
