"""Sentence encoders of the e5 family: text -> vector of length 1.

A folder with an ONNX file (model.onnx or onnx/model.onnx) is run by onnxruntime, any other by transformers and torch,
sentence-transformers folders included. As e5 was trained: a prefix before each text, at most 256 tokens, the mean of
the last hidden states, normalised (arXiv 2212.03533, section 4).
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gigpo_jax.errors import InputError

INSTALL = 'pip install "gigpo_jax[search-dense]"'
MAX_TOKENS = 256
CHUNK = 64  # texts of a model call; sorted by length, so that padding is small
ONNX_FILES = ("model.onnx", "onnx/model.onnx")
Encode = Callable[[Sequence[str]], np.ndarray]  # texts -> [n, D] f32 of length 1
_Hidden = Callable[[np.ndarray, np.ndarray], np.ndarray]  # ids and mask [n, T] i64 -> last hidden states [n, T, D]


def load_encoder(model: str, prefix: str) -> Encode:
    """The encoder of a model folder.

    Args:
      model: the folder: tokenizer.json and an ONNX file, or config.json and weights.
      prefix: written before every text; "query: " or "passage: " for e5.
    """
    folder = Path(model)
    if not model or not folder.is_dir():
        raise InputError(f"--encoder {model}: no such folder; give a downloaded model, such as e5-base-v2")
    tokenizer = _tokenizer(folder)
    _check_pooling(folder)
    file = next((folder / name for name in ONNX_FILES if (folder / name).is_file()), None)
    hidden = _onnx(file) if file else _torch(folder)

    def encode(texts: Sequence[str]) -> np.ndarray:
        tokens = [encoding.ids for encoding in tokenizer.encode_batch([prefix + _clean(text) for text in texts])]
        order = sorted(range(len(tokens)), key=lambda row: len(tokens[row]))
        parts = [_pooled(hidden, [tokens[row] for row in order[i : i + CHUNK]]) for i in range(0, len(order), CHUNK)]
        vectors = np.concatenate(parts)
        found = np.empty_like(vectors)
        found[order] = vectors
        return found

    return encode


def _clean(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _tokenizer(folder: Path) -> Any:
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as err:  # tokenizers raises bare Exception
        raise InputError(f"--encoder {folder}: tokenizer.json cannot be read ({_line(err)})") from err
    tokenizer.no_padding()
    tokenizer.enable_truncation(MAX_TOKENS)
    return tokenizer


def _check_pooling(folder: Path) -> None:
    """Refuses a sentence-transformers folder with another kind of pooling."""
    file = folder / "1_Pooling" / "config.json"
    if file.is_file():
        try:
            mean = json.loads(file.read_text(encoding="utf-8")).get("pooling_mode_mean_tokens")
        except (OSError, ValueError, AttributeError) as err:
            raise InputError(f"--encoder {folder}: {file.name} of 1_Pooling cannot be read ({_line(err)})") from err
        if mean is not True:
            raise InputError(f"--encoder {folder}: does not use mean pooling; use a model like e5-base-v2")


def _pooled(hidden: _Hidden, tokens: list[list[int]]) -> np.ndarray:
    """Means of the hidden states of real tokens, normalised: [n, D] f32."""
    ids = np.zeros((len(tokens), max(1, *map(len, tokens))), np.int64)
    mask = np.zeros_like(ids)
    for row, found in enumerate(tokens):
        ids[row, : len(found)], mask[row, : len(found)] = found, 1
    states = np.asarray(hidden(ids, mask), np.float32)
    weight = mask[..., None].astype(np.float32)
    means = (states * weight).sum(1) / np.maximum(weight.sum(1), 1.0)
    return means / np.maximum(np.linalg.norm(means, axis=1, keepdims=True), 1e-12)


def _onnx(file: Path) -> _Hidden:
    try:
        import onnxruntime
    except ImportError as err:
        raise InputError(f"--encoder {file}: onnxruntime is not installed ({err}); {INSTALL}") from err
    try:
        session = onnxruntime.InferenceSession(str(file), providers=onnxruntime.get_available_providers())
    except Exception as err:  # its errors have no other common base class
        raise InputError(f"--encoder {file}: cannot be loaded ({_line(err)})") from err
    wanted = {given.name for given in session.get_inputs()}
    outputs = session.get_outputs()
    output = next((one.name for one in outputs if one.name == "last_hidden_state"), outputs[0].name)
    if wanted - {"input_ids", "attention_mask", "token_type_ids"} or "input_ids" not in wanted:
        raise InputError(f"--encoder {file}: takes {', '.join(sorted(wanted))}; an encoder takes input_ids")

    def hidden(ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        every = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        states = np.asarray(session.run([output], {name: every[name] for name in wanted})[0])
        if states.shape[:2] != ids.shape:
            raise InputError(f"--encoder {file}: {output} has the shape {states.shape}; export the last hidden states")
        return states

    return hidden


def _torch(folder: Path) -> _Hidden:
    try:
        import torch
        from transformers import AutoModel
    except ImportError as err:
        raise InputError(f"--encoder {folder}: torch is not installed ({err}); {INSTALL}, or give ONNX") from err
    try:
        model = AutoModel.from_pretrained(folder, local_files_only=True, dtype=torch.float32).eval()
    except (OSError, ValueError, RuntimeError) as err:
        raise InputError(f"--encoder {folder}: cannot be loaded ({_line(err)})") from err
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model.to(device)

    def hidden(ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            states = model(
                input_ids=torch.from_numpy(ids).to(device), attention_mask=torch.from_numpy(mask).to(device)
            ).last_hidden_state
        found: np.ndarray = states.float().cpu().numpy()
        return found

    return hidden


def _line(err: Exception) -> str:
    return " ".join(str(err).split())[:200]
