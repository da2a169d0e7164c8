"""The policy of a run: a model's shape, its sharded parameters and its tokenizer."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from absl import logging
from ml_collections import ConfigDict

from gigpo_jax import partition
from gigpo_jax.errors import InputError
from gigpo_jax.memory import check_memory
from gigpo_jax.models import qwen2
from gigpo_jax.models.hf_config import read_config
from gigpo_jax.models.tokenizer import Tokenizer, check_fits, load_tokenizer, word_tokenizer
from gigpo_jax.models.weights import load_hf


@dataclass(frozen=True)
class Policy:
    """What turns prompts into distributions over replies.

    Attributes:
      config: the model's shape.
      params: nested dict of arrays, in `model.param_dtype`, sharded over the mesh.
      tokenizer: text <-> token ids.
    """

    config: qwen2.Qwen2Config
    params: Any
    tokenizer: Tokenizer


def load_policy(config: ConfigDict, mesh: jax.sharding.Mesh) -> Policy:
    """Reads the policy from `model.path`.

    Raises:
      InputError: no path, or a folder that does not hold a model and a tokenizer that fit together.
    """
    path = config.model.path
    if not path:
        raise InputError(
            "config.model.path='': a folder with a model is needed (config.json, *.safetensors, tokenizer); "
            "--mode=sft makes one from nothing"
        )
    if not Path(path).is_dir():
        raise InputError(f"config.model.path={path!r}: no such folder; give a Hugging Face model folder")
    tokenizer, shape = load_tokenizer(path), read_config(Path(path))
    check_fits(tokenizer, shape.vocab_size, path)
    check_memory(config, shape, mesh.size)
    dtype = jnp.dtype(config.model.param_dtype)
    return Policy(*load_hf(path, dtype=dtype, shardings=shardings(shape, mesh)), tokenizer)


def fresh_policy(config: ConfigDict, mesh: jax.sharding.Mesh, words: Iterable[str]) -> Policy:
    """Random weights of `model.shape` and a word-level tokenizer that knows `words`."""
    tokenizer = word_tokenizer(words)
    fields = dict(config.model.shape)
    shape = qwen2.Qwen2Config(
        vocab_size=tokenizer.vocab_size, head_dim=fields["hidden_size"] // fields["num_heads"], **fields
    )
    dtype = jnp.dtype(config.model.param_dtype)
    init = jax.jit(lambda key: qwen2.init(shape, key, dtype), out_shardings=shardings(shape, mesh))
    return Policy(shape, init(jax.random.key(config.seed)), tokenizer)


def shardings(shape: qwen2.Qwen2Config, mesh: jax.sharding.Mesh) -> Any:
    """Where each parameter lives, from the model's axis names and the rules of `partition`."""
    where, notes = partition.param_shardings(mesh, qwen2.logical_axes(shape), qwen2.abstract_params(shape))
    for note in notes:
        logging.warning(note)
    return where


def forward_function(
    config: ConfigDict, shape: qwen2.Qwen2Config, mesh: jax.sharding.Mesh
) -> Callable[..., tuple[jax.Array, jax.Array]]:
    """(params, tokens [B, T], positions, segment_ids) -> (hidden states [B, T, D], output embedding [V, D]).

    Rows stay spread over the mesh in every layer; parameters are as in `shardings`.
    """
    model, sampling = config.model, config.sampling
    embedding = partition.gathered(shardings(shape, mesh)["embed"])
    how = {
        "dtype": jnp.dtype(model.compute_dtype),
        "remat": model.remat,
        "unroll": model.unroll,
        "max_segment": sampling.max_prompt_tokens + sampling.max_reply_tokens,
        "constrain": partition.row_constraint(mesh),
    }

    def forward(params: Any, tokens: jax.Array, positions: jax.Array, segment_ids: jax.Array) -> tuple:
        params = params | {"embed": jax.lax.with_sharding_constraint(params["embed"], embedding)}
        hidden = qwen2.hidden_states(shape, params, tokens, positions, segment_ids, **how)
        return hidden, qwen2.output_embedding(shape, params)

    return forward
