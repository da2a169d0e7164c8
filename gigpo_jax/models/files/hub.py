"""Models of the Hugging Face Hub: ORG/NAME in place of a folder, and folders pushed there.

Needs no jax. Endpoint, cache, token and offline mode are set as for huggingface_hub: HF_ENDPOINT,
HF_HUB_CACHE, HF_TOKEN, HF_HUB_OFFLINE.
"""

import functools
import pathlib
import re
import shlex

from gigpo_jax.core.errors import InputError, StorageError, first_line
from gigpo_jax.core.files import read_object
from gigpo_jax.core.packaged import ROOT
from gigpo_jax.models.files.safetensors_file import INDEX, SINGLE

FILES = ("*.json", "*.jinja", "*.txt", "*.safetensors")  # patterns of a model's files
_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*")


def is_name(text: str) -> bool:
    """Tests whether a text can name a Hub model."""
    return _NAME.fullmatch(text) is not None


def find_model(path: str, revision: str, key: str) -> pathlib.Path:
    """Returns the folder of a Hub model; arguments and errors as for `folders.model_folder`."""
    if pathlib.Path(path).is_file() and path.endswith(".gguf"):
        raise InputError(
            "a GGUF file",
            key=key,
            value=repr(path),
            fix=f"run `gigpo import {path} --out DIR` and give DIR",
        )
    # Before the Hub: models/NAME could be one of its names.
    fix = describe_source(path)
    if not fix and not is_name(path):
        fix = "give a Hugging Face model folder, or ORG/NAME of the Hub"
    if fix:
        raise InputError("no such folder", key=key, value=repr(path), fix=fix)
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


def download(name: str, revision: str, *, key: str) -> pathlib.Path:
    """Returns the cached folder of a Hub model, and downloads the model if it is not there.

    Args:
      name: ORG/NAME.
      revision: branch, tag or commit; "" is the main branch.
      key: config key of the name, for the message.

    Raises:
      InputError: the model is not in the cache and cannot be downloaded; the text has the command
        that downloads it.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    fetch = functools.partial(
        snapshot_download, name, revision=revision or None, allow_patterns=list(FILES)
    )
    try:
        try:
            # The cache first: a complete folder needs no network.
            folder = pathlib.Path(fetch(local_files_only=True))
        except LocalEntryNotFoundError:
            folder = None
        if folder is not None and _is_complete(folder):
            return folder
        return pathlib.Path(fetch())
    except Exception as err:  # any error of the Hub, its HTTP client or the file system
        words = ["hf", "download", name]
        if revision:
            words += ["--revision", revision]
        for pattern in FILES:
            words += ["--include", pattern]
        raise InputError(
            f"no such folder, and no such model from the Hub ({first_line(err)})",
            key=key,
            value=repr(name),
            fix=f"where there is a network: {shlex.join(words)}",
        ) from err


def _is_complete(folder: pathlib.Path) -> bool:
    """Tests whether a cached folder has all model files."""
    # Other programs may have downloaded only some of them.
    index = folder / INDEX
    weights = read_object(index)["weight_map"].values() if index.exists() else [SINGLE]
    return all((folder / name).exists() for name in {"config.json", "tokenizer.json", *weights})


def check_push(name: str) -> None:
    """Checks the name ORG/NAME and the token for the Hub.

    Raises InputError if `name` is not like that, or there is no token.
    """
    from huggingface_hub import get_token

    if not is_name(name):
        raise InputError(
            "no name of a model of the Hub", key="--push", value=name, fix="write ORG/NAME"
        )
    if get_token() is None:
        raise InputError(
            "no token for the Hub",
            key="--push",
            value=name,
            fix="set HF_TOKEN, or log in with: hf auth login",
        )


def push(folder: pathlib.Path, name: str) -> str:
    """Uploads a model folder as ORG/NAME, private if new; weights there are replaced.

    Returns:
      The address of the model.

    Raises:
      StorageError: the Hub cannot be reached, or refuses.
    """
    from huggingface_hub import HfApi

    api = HfApi()
    try:
        url = api.create_repo(name, private=True, exist_ok=True)
        # Shards of an earlier upload may have other names, and would stay beside the new files.
        api.upload_folder(
            repo_id=name,
            folder_path=folder,
            commit_message="Export",
            delete_patterns=["*.safetensors*"],
        )
    except Exception as err:  # any error of the Hub, its HTTP client or the file system
        command = shlex.join(["hf", "upload", name, str(folder)])
        raise StorageError(
            f"--push={name}: failed ({first_line(err)}); the folder is complete, push it with: "
            f"{command}"
        ) from err
    return str(url)
