"""The command gigpo import FILE.gguf --out DIR."""

import argparse
import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from gigpo_jax.core.errors import InputError, escape_controls
from gigpo_jax.core.files import check_writable
from gigpo_jax.core.folders import replace_folder
from gigpo_jax.models.decoder_config import DecoderConfig
from gigpo_jax.models.files.hf_config import read_config
from gigpo_jax.models.files.safetensors_file import SINGLE
from gigpo_jax.models.files.save_weights import check_target, write_safetensors
from gigpo_jax.models.files.weights import check_finite
from gigpo_jax.models.text.tokenizer import check_vocabulary, load_tokenizer
from gigpo_jax.tools.import_gguf.config import make_config, make_generation_config
from gigpo_jax.tools.import_gguf.reader import GgufFile, open_gguf
from gigpo_jax.tools.import_gguf.tensors import Source, list_sources, read_tensor
from gigpo_jax.tools.import_gguf.tokenizer import make_tokenizer, make_tokenizer_config

DTYPES = {
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype(np.float16),
    "float32": np.dtype(np.float32),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Writes the folder; returns 0 (done) or 2 (bad input)."""
    parser = argparse.ArgumentParser(
        prog="gigpo import",
        description="Writes a GGUF file as a Hugging Face folder: weights, tokenizer, chat "
        "template and generation settings. Architectures: llama, qwen2, qwen3.",
    )
    parser.add_argument("file", type=Path, metavar="FILE.gguf")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write")
    parser.add_argument(
        "--dtype",
        choices=list(DTYPES),
        default="bfloat16",
        help="dtype of the weights (%(default)s)",
    )
    args = parser.parse_args(argv)
    try:
        import_file(args.file, args.out, DTYPES[args.dtype])
    except InputError as error:
        print(f"gigpo import: {escape_controls(str(error))}", file=sys.stderr)
        return 2
    print(f"written: {args.out}\nnext: --config.model.path={args.out}")
    return 0


def import_file(file: Path, out: Path, dtype: np.dtype) -> None:
    """Writes the folder, whole or not at all; an earlier model there is replaced.

    Args:
      file: GGUF file.
      out: Folder to write.
      dtype: Dtype of the stored weights.

    Raises:
      InputError: The file is no GGUF file, is damaged, or has something that is not supported; or
        the folder cannot be written.
    """
    gguf = open_gguf(file)
    contents = {
        "config.json": make_config(gguf, dtype.name),
        "generation_config.json": make_generation_config(gguf),
        "tokenizer.json": make_tokenizer(gguf),
        "tokenizer_config.json": make_tokenizer_config(gguf),
    }
    check_target(out)
    check_writable(out.parent, "--out")
    try:
        with replace_folder(out, full=True) as folder:
            config = _write_contents(folder, gguf, contents)
            sources = list_sources(gguf, config)
            needed = sum(source.size for source in sources) * dtype.itemsize
            if (free := shutil.disk_usage(folder).free) < needed:
                raise InputError(
                    f"{needed / 1e9:.1f} GB are needed, {free / 1e9:.1f} GB are free",
                    key="--out",
                    value=out,
                    fix="make room or choose another folder",
                )
            names = [(source.name, source.shape) for source in sources]
            tensors = _read_all(gguf, sources, dtype)
            write_safetensors(folder / SINGLE, names, tensors, dtype)
    except OSError as error:
        raise InputError(
            f"cannot be written ({error.strerror})",
            key="--out",
            value=out,
            fix="choose another folder or make room",
        ) from error


def _write_contents(
    folder: Path, gguf: GgufFile, contents: dict[str, dict[str, Any]]
) -> DecoderConfig:
    """Writes all but the weights; returns the shape of the model.

    Raises InputError if a run would refuse the folder.
    """
    for name, content in contents.items():
        text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
        (folder / name).write_text(text, encoding="utf-8")
    try:
        config = read_config(folder)
        check_vocabulary(load_tokenizer(folder), config.vocab_size, folder)
    except InputError as error:
        # The folder is a temporary one: the user knows the file.
        raise InputError(error.reason, key="FILE", value=gguf.path, fix=error.fix) from error
    return config


def _read_all(gguf: GgufFile, sources: Sequence[Source], dtype: np.dtype) -> Iterator[np.ndarray]:
    for number, source in enumerate(sources):
        if sys.stderr.isatty():
            print(f"\r{number + 1} of {len(sources)} tensors", end="", file=sys.stderr)
        # Beyond the range of float16 is infinity.
        with np.errstate(over="ignore", invalid="ignore"):
            tensor = np.ascontiguousarray(read_tensor(gguf, source).astype(dtype, copy=False))
        check_finite(gguf.path, source.stored, tensor)
        yield tensor
    if sys.stderr.isatty():
        print(file=sys.stderr)
