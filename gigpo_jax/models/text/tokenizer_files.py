"""Files of a model folder about its tokenizer: ids, chat template, and what ends a response.

They are read by transformers' PreTrainedTokenizerFast, imported with the first folder. Beside the
`tokenizers` library alone this takes 1.2 CPU seconds and 120 MB, once a run; environment workers
have no tokenizer (benchmarks/tokenizer.py). AutoTokenizer would import PyTorch where it is
installed (1.6 s and 175 MB more), and it chooses a class by the type in config.json, so that ids
may differ from the ids of tokenizer.json.
"""

import os
import pathlib

import tokenizers

from gigpo_jax.core.errors import InputError, first_line
from gigpo_jax.core.files import read_object

FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
)
# Strings that end a response, {"stop_strings": [...]}. A file of our own: with this key in
# generation_config.json `generate` of transformers refuses to run without a tokenizer.
STOPS = "gigpo_jax.json"


def read_tokenizer_files(
    folder: pathlib.Path,
) -> tuple[tokenizers.Tokenizer, dict[str, str], str | None]:
    """Reads a model folder's tokenizer, special tokens and chat template.

    Raises:
      InputError: the files cannot be read.
    """
    # Without PyTorch, transformers says on import that it has no models.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    from transformers import PreTrainedTokenizerFast

    try:
        loaded = PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
        if not len(loaded):
            raise ValueError("no tokens")
        special_tokens = dict(loaded.special_tokens_map)
        templates = loaded.chat_template
        # A folder may have several templates by name, such as one for tools.
        template = templates.get("default") if isinstance(templates, dict) else templates
        if not (template is None or isinstance(template, str)):
            raise TypeError(f"chat_template is a {type(template).__name__}")
    except BaseException as err:
        # tokenizers raises bare Exception for a file that it cannot read; its panics are none.
        if not isinstance(err, Exception) and type(err).__name__ != "PanicException":
            raise
        raise InputError(
            f"tokenizer files cannot be read ({first_line(err)})", key=folder, fix="download again"
        ) from err
    return loaded.backend_tokenizer, special_tokens, template


def read_stop_strings(folder: pathlib.Path) -> tuple[str, ...]:
    """Returns the strings that end the responses of a model folder.

    Raises:
      InputError: the value is no list of texts.
    """
    strings: list[str] = []
    # Other programs, and folders of version 0.1, have them in generation_config.json.
    for file in (folder / STOPS, folder / "generation_config.json"):
        value = read_object(file).get("stop_strings") if file.exists() else None
        texts = [value] if isinstance(value, str) else value or []
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            reason = f"stop_strings={value!r:.80} must be a list of texts"
            raise InputError(reason, key=file, fix="mend it or remove the key")
        strings += [text for text in texts if text and text not in strings]
    return tuple(strings)
