"""Sentence encoders of the e5 family: text -> vector of length 1.

A folder with an ONNX file (model.onnx or onnx/model.onnx) is run by onnxruntime, any other by
transformers and torch, sentence-transformers folders included. As e5 was trained: a prefix before
each text, at most 256 tokens, the mean of the last hidden states, normalised (arXiv 2212.03533,
section 4).
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gigpo_jax.core.errors import InputError
from gigpo_jax.core.optional import optional_imports

MAX_TOKENS = 256
CHUNK = 64  # texts of a model call
ONNX_FILES = ("model.onnx", "onnx/model.onnx")
INPUTS = {"input_ids", "attention_mask", "token_type_ids"}
Encode = Callable[[Sequence[str]], np.ndarray]  # texts -> [n, D] f32 of length 1
# ids and mask [n, T] i64 -> last hidden states [n, T, D]
_Model = Callable[[np.ndarray, np.ndarray], np.ndarray]


def load_encoder(model: str, prefix: str) -> Encode:
    """Loads the encoder of a model folder.

    Args:
      model: Folder with tokenizer.json and an ONNX file, or config.json and weights.
      prefix: Text before every text to encode; "query: " or "passage: " for e5.
    """
    folder = Path(model)
    if not model or not folder.is_dir():
        raise InputError(
            "no such folder",
            key="--encoder",
            value=model,
            fix="give a downloaded model, such as e5-base-v2",
        )
    tokenizer = _load_tokenizer(folder)
    _check_pooling(folder)
    onnx_files = [folder / name for name in ONNX_FILES if (folder / name).is_file()]
    compute_states = _load_onnx(onnx_files[0]) if onnx_files else _load_torch(folder)

    def encode(texts: Sequence[str]) -> np.ndarray:
        prefixed = [prefix + _replace_surrogates(text) for text in texts]
        token_rows = [encoding.ids for encoding in tokenizer.encode_batch(prefixed)]
        # Sorted by length, so that the texts of a chunk need little padding.
        order = sorted(range(len(token_rows)), key=lambda row: len(token_rows[row]))
        chunks = []
        for start in range(0, len(order), CHUNK):
            chunk_tokens = [token_rows[row] for row in order[start : start + CHUNK]]
            chunks.append(_pool_states(compute_states, chunk_tokens))
        sorted_vectors = np.concatenate(chunks)
        vectors = np.empty_like(sorted_vectors)
        vectors[order] = sorted_vectors
        return vectors

    return encode


def _replace_surrogates(text: str) -> str:
    """Replaces lone surrogates, which the tokenizer's Rust code rejects."""
    return text.encode("utf-8", "replace").decode()


def _load_tokenizer(folder: Path) -> Any:
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as err:  # tokenizers raises bare Exception
        raise InputError(
            f"tokenizer.json cannot be read ({_shorten_message(err)})",
            key="--encoder",
            value=folder,
        ) from err
    tokenizer.no_padding()
    tokenizer.enable_truncation(MAX_TOKENS)
    return tokenizer


def _check_pooling(folder: Path) -> None:
    """Refuses a sentence-transformers folder with another kind of pooling."""
    file = folder / "1_Pooling" / "config.json"
    if not file.is_file():
        return
    try:
        mean = json.loads(file.read_text(encoding="utf-8")).get("pooling_mode_mean_tokens")
    except (OSError, ValueError, AttributeError) as err:
        raise InputError(
            f"{file.name} of 1_Pooling cannot be read ({_shorten_message(err)})",
            key="--encoder",
            value=folder,
        ) from err
    if mean is not True:
        raise InputError(
            "does not use mean pooling",
            key="--encoder",
            value=folder,
            fix="use a model like e5-base-v2",
        )


def _pool_states(compute_states: _Model, token_rows: list[list[int]]) -> np.ndarray:
    """Averages and normalises real tokens' hidden states, [n, D] f32."""
    width = max(1, *map(len, token_rows))
    ids = np.zeros((len(token_rows), width), np.int64)
    mask = np.zeros_like(ids)
    for row, tokens in enumerate(token_rows):
        ids[row, : len(tokens)] = tokens
        mask[row, : len(tokens)] = 1
    states = np.asarray(compute_states(ids, mask), np.float32)
    weight = mask[..., None].astype(np.float32)
    # The mean over real tokens alone. The bounds keep an empty text from a division by zero.
    means = (states * weight).sum(1) / np.maximum(weight.sum(1), 1.0)
    return means / np.maximum(np.linalg.norm(means, axis=1, keepdims=True), 1e-12)


def _load_onnx(file: Path) -> _Model:
    with optional_imports("search-dense", key="--encoder", value=file):
        import onnxruntime
    providers = onnxruntime.get_available_providers()
    try:
        session = onnxruntime.InferenceSession(str(file), providers=providers)
    except Exception as err:  # its errors have no other common base class
        raise InputError(
            f"cannot be loaded ({_shorten_message(err)})", key="--encoder", value=file
        ) from err
    inputs = {node.name for node in session.get_inputs()}
    if inputs - INPUTS or "input_ids" not in inputs:
        names = ", ".join(sorted(inputs))
        raise InputError(
            f"takes {names}, an encoder takes input_ids",
            key="--encoder",
            value=file,
            fix="give a model like e5-base-v2",
        )
    outputs = [node.name for node in session.get_outputs()]
    # Some exports have pooled vectors beside the states.
    output = "last_hidden_state" if "last_hidden_state" in outputs else outputs[0]

    def compute_states(ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        # Exported models take two or three of these inputs.
        arrays = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        states = np.asarray(session.run([output], {name: arrays[name] for name in inputs})[0])
        if states.shape[:2] != ids.shape:
            raise InputError(
                f"{output} has the shape {states.shape}",
                key="--encoder",
                value=file,
                fix="export the last hidden states",
            )
        return states

    return compute_states


def _load_torch(folder: Path) -> _Model:
    with optional_imports("search-dense", key="--encoder", value=folder, other="give ONNX"):
        import torch
        from transformers import AutoModel
    try:
        # From the folder alone, never from the network.
        model = AutoModel.from_pretrained(folder, local_files_only=True, dtype=torch.float32).eval()
    except (OSError, ValueError, RuntimeError) as err:
        raise InputError(
            f"cannot be loaded ({_shorten_message(err)})", key="--encoder", value=folder
        ) from err
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model.to(device)

    def compute_states(ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            outputs = model(
                input_ids=torch.from_numpy(ids).to(device),
                attention_mask=torch.from_numpy(mask).to(device),
            )
        states: np.ndarray = outputs.last_hidden_state.float().cpu().numpy()
        return states

    return compute_states


def _shorten_message(err: Exception) -> str:
    return " ".join(str(err).split())[:200]
