"""Models of the Hugging Face Hub: ORG/NAME in place of a folder, and folders pushed there.

Needs no jax. Endpoint, cache, token and offline mode are those of huggingface_hub: HF_ENDPOINT, HF_HUB_CACHE, HF_TOKEN,
HF_HUB_OFFLINE.
"""

import functools
import pathlib
import re
import shlex

from gigpo_jax.errors import InputError, StorageError
from gigpo_jax.files import read_object
from gigpo_jax.models.safetensors_file import INDEX, SINGLE

FILES = ("*.json", "*.jinja", "*.txt", "*.safetensors")  # of a model
_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*")


def is_name(text: str) -> bool:
    """Whether a text can be the name of a model of the Hub."""
    return _NAME.fullmatch(text) is not None


def download(name: str, revision: str, *, key: str) -> pathlib.Path:
    """The folder of a model of the Hub: that of the cache, or downloaded into it.

    Args:
      name: ORG/NAME.
      revision: branch, tag or commit; "" is the main branch.
      key: where the name was given, for the message.

    Raises:
      InputError: the model is not in the cache and cannot be downloaded; the text has the command that downloads it.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    fetch = functools.partial(snapshot_download, name, revision=revision or None, allow_patterns=list(FILES))
    try:
        try:
            folder = pathlib.Path(fetch(local_files_only=True))
        except LocalEntryNotFoundError:
            folder = None
        return folder if folder is not None and _complete(folder) else pathlib.Path(fetch())
    except Exception as err:  # those of the Hub, of its HTTP client and of the file system
        words = ["hf", "download", name, *(["--revision", revision] if revision else [])]
        command = shlex.join([*words, *(word for pattern in FILES for word in ("--include", pattern))])
        raise InputError(
            f"{key}={name!r}: no such folder, and no such model from the Hub ({_first_line(err)}); where there is a "
            f"network: {command}"
        ) from err


def _complete(folder: pathlib.Path) -> bool:
    """Whether a folder of the cache has all files of a model; other programs may have taken a part of them."""
    index = folder / INDEX
    weights = read_object(index)["weight_map"].values() if index.exists() else [SINGLE]
    return all((folder / name).exists() for name in {"config.json", "tokenizer.json", *weights})


def check_push(name: str) -> None:
    """Raises InputError if a push to the model `name` cannot work: it is not like ORG/NAME, or there is no token."""
    from huggingface_hub import get_token

    if not is_name(name):
        raise InputError(f"--push={name}: no name of a model of the Hub; write ORG/NAME")
    if get_token() is None:
        raise InputError(f"--push={name}: no token for the Hub; set HF_TOKEN, or log in with: hf auth login")


def push(folder: pathlib.Path, name: str) -> str:
    """Uploads a model folder as ORG/NAME, which is made, private, if there is none; weights there are replaced.

    Returns:
      The address of the model.

    Raises:
      StorageError: the Hub cannot be reached, or refuses.
    """
    from huggingface_hub import HfApi

    api = HfApi()
    try:
        url = api.create_repo(name, private=True, exist_ok=True)
        api.upload_folder(repo_id=name, folder_path=folder, commit_message="Export", delete_patterns=["*.safetensors*"])
    except Exception as err:  # those of the Hub, of its HTTP client and of the file system
        command = shlex.join(["hf", "upload", name, str(folder)])
        raise StorageError(
            f"--push={name}: failed ({_first_line(err)}); the folder is complete, push it with: {command}"
        ) from err
    return str(url)


def _first_line(err: Exception) -> str:
    return f"{type(err).__name__}: {str(err).strip().partition(chr(10))[0]:.200}"
