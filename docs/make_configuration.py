"""Writes docs/configuration.md from the keys, defaults and comments of gigpo_jax/config.py."""

import inspect
import re
from pathlib import Path

from gigpo_jax import config as config_module

HEAD = """# Configuration

A config file under `configs/` has a function `get_config()` that starts from `gigpo_jax.config.default_config()`,
changes what its experiment needs, and locks it. Any key can be changed on the command line: `--config.train.groups=8`.
A key that does not exist is answered with the nearest ones, a value that cannot work with what would; both before
anything is loaded, with exit status 2.

`env.options`, `env.generate`, `model.shape` and `sft.demonstrator` hold what the environment's builder, its generator,
the model and the demonstrator take; their keys differ from experiment to experiment.

This page is written by `python docs/make_configuration.py`.

| key | default | meaning |
|---|---|---|
"""


def table() -> str:
    """The rows of all keys, in the order of the source."""
    rows, prefix = [], {"c": ""}
    source = inspect.getsource(config_module.default_config)
    source = re.sub(r"ConfigDict\(  # (.*)\n(?:.*\n)*?    \)", r"ConfigDict()  # \1", source)
    for line in source.splitlines():
        if opened := re.match(r"    c\.(\w+) = (\w+) = ConfigDict\(\)", line):
            prefix[opened[2]] = opened[1] + "."
        elif found := re.match(r"    (\w+)\.(\w+) = (.*?)  # (.*)", line):
            name, key, default, meaning = found.groups()
            default = "see the file" if default == "ConfigDict()" else f"`{default}`"
            rows.append(f"| `{prefix[name]}{key}` | {default} | {meaning.replace('|', ', ')} |")
        elif found := re.match(r"    (\w+)\.(\w+) = (.*)", line):
            rows.append(f"| `{prefix[found[1]]}{found[2]}` | `{found[3]}` | |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    Path(__file__).with_name("configuration.md").write_text(HEAD + table(), encoding="utf-8")
