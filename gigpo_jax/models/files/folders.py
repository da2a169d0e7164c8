"""The folder of a model: a path, or a name on the Hugging Face Hub."""

from pathlib import Path

from gigpo_jax.core.errors import InputError
from gigpo_jax.core.packaged import locate_file


def model_folder(path: str, revision: str, *, key: str = "config.model.path") -> Path:
    """Resolves a path, which may name a folder of the package or a Hub model, to a model's folder.

    `revision` is the branch, tag or commit of a Hub model, "" its main branch; messages name `key`.

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
    from gigpo_jax.models.files.hub import find_model

    return find_model(path, revision, key)
