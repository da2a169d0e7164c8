"""The folder of a model: a path, or a name on the Hugging Face Hub."""

import re
from pathlib import Path

from gigpo_jax.core.errors import InputError
from gigpo_jax.core.packaged import ROOT, locate_file


def model_folder(path: str, revision: str, *, key: str = "config.model.path") -> Path:
    """Resolves a path, which may name a folder of the package or a Hub model, to a model's folder.

    Args:
      path: path of the folder, or ORG/NAME.
      revision: branch, tag or commit of a Hub model; "" is its main branch.
      key: config key of the path, for messages.

    Raises:
      InputError: there is none.
    """
    if not path:
        raise InputError(
            "no model is named",
            key=key,
            value="''",
            fix="give a folder with a model (config.json, *.safetensors, tokenizer) or a model of "
            "the Hub (ORG/NAME); gigpo sft makes one from nothing",
        )
    folder = locate_file(path)
    if folder.is_dir():
        if revision:
            raise InputError(
                "a folder, which has no revisions",
                key=key,
                value=repr(path),
                fix=f"leave revision={revision!r} out",
            )
        return folder
    if folder.is_file() and folder.suffix == ".gguf":
        raise InputError(
            "a GGUF file",
            key=key,
            value=repr(path),
            fix=f"run `gigpo import {path} --out DIR` and give DIR",
        )
    # Before the Hub: models/NAME could be one of its names.
    fix = describe_source(path)
    if fix:
        raise InputError("no such folder", key=key, value=repr(path), fix=fix)
    from gigpo_jax.models.files.hub import download, is_name

    if not is_name(path):
        raise InputError(
            "no such folder",
            key=key,
            value=repr(path),
            fix="give a Hugging Face model folder, or ORG/NAME of the Hub",
        )
    return download(path, revision, key=key)


def describe_source(path: str) -> str:
    """Says which packaged config makes the model in the folder `path`; "" if none does."""
    command = re.compile(rf"--out[= ]{re.escape(path)}(?!\w)")
    for config in sorted((ROOT / "configs").glob("*.py")):
        if command.search(config.read_text()):
            return (
                f"make it with the commands at the top of {config} (a clone of gigpo_jax has the "
                "models of the tiny configs)"
            )
    return ""
