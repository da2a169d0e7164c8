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
    sections = {"": config_module.default_config}
    sections |= {f"{name}.": section for name, section in config_module.SECTIONS.items()}
    return "".join(rows(prefix, inspect.getsource(section)) for prefix, section in sections.items())


def rows(prefix: str, source: str) -> str:
    """The rows of one section, from the source of the function that makes it."""
    found = []
    source = re.sub(r"ConfigDict\(  # (.*)\n(?:.*\n)*?    \)", r"ConfigDict()  # \1", source)
    for line in source.splitlines():
        if match := re.match(r"    \w+\.([\w.]+) = (.*?)(?:  # (.*))?$", line):
            key, default, meaning = match.groups()
            filled = f".{key}." in source
            default = "as below" if filled else "see the file" if default == "ConfigDict()" else f"`{default}`"
            default = default.replace("LORA_TARGETS", str(config_module.LORA_TARGETS).replace("'", '"'))
            meaning = f" {meaning.replace('|', ', ')} " if meaning else " "
            found.append(f"| `{prefix}{key}` | {default} |{meaning}|\n")
    return "".join(found)


if __name__ == "__main__":
    Path(__file__).with_name("configuration.md").write_text(HEAD + table(), encoding="utf-8")
