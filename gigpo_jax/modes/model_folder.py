"""Policies that begin and end a run: random weights, and the folder of a trained model."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from gigpo_jax.config.model_checks import check_vision
from gigpo_jax.models import decoder
from gigpo_jax.models.files.save_weights import save_hf
from gigpo_jax.models.layers import INITIALIZER_RANGE
from gigpo_jax.models.text.tokenizer import Tokenizer
from gigpo_jax.models.text.word_tokenizer import word_tokenizer
from gigpo_jax.models.vision.vision_config import IMAGE_TOKENS, VisionConfig
from gigpo_jax.policy import Policy, lora_config, param_shardings

ADAPTER = "adapter"  # in an exported folder: the adapter alone


def fresh_policy(config: ConfigDict, mesh: jax.sharding.Mesh, words: Iterable[str]) -> Policy:
    """Draws random weights of `model.shape` and makes a word-level tokenizer that knows `words`."""
    fields = dict(config.model.shape)
    tower = fields.pop("vision")
    head_dim = fields["hidden_size"] // fields["num_heads"]
    factor = fields.pop("initializer_range") / INITIALIZER_RANGE
    # vLLM looks the token of videos up in the tokenizer.
    tokenizer = word_tokenizer(words, (*IMAGE_TOKENS, "<|video_pad|>") if tower.depth else ())
    vision = _fresh_tower(tower, tokenizer, head_dim) if tower.depth else None
    check_vision(config, vision)
    shape = decoder.DecoderConfig(
        vocab_size=tokenizer.vocab_size, head_dim=head_dim, vision=vision, **fields
    )
    dtype = jnp.dtype(config.model.param_dtype)
    init = jax.jit(
        # In one program with shardings: no device holds the whole tree.
        lambda key: _scale_matrices(decoder.init_params(shape, key, dtype), factor),
        out_shardings=param_shardings(shape, mesh),
    )
    return Policy(shape, init(jax.random.key(config.seed)), tokenizer)


def _scale_matrices(params: Any, factor: float) -> Any:
    """Multiplies every matrix of random parameters by `factor`, but no bias and no norm."""

    def scale(path: tuple[Any, ...], leaf: jax.Array) -> jax.Array:
        # Norms start at 1: a factor would change what they do, and not the spread
        # of random weights.
        if path[-1].key in ("kernel", "embed"):
            return leaf * factor
        return leaf

    return jax.tree.map_with_path(scale, params)


def _fresh_tower(fields: ConfigDict, tokenizer: Tokenizer, head_dim: int) -> VisionConfig:
    """The vision tower of `model.shape.vision`, where every eighth layer sees the whole image.

    These layers are counted back from the last one.
    """
    start, image, end = tokenizer.encode("".join(IMAGE_TOKENS))
    # The published shares of frame, row and column are 16, 24 and 24 of 64 frequencies.
    side_frequencies = 3 * head_dim // 16
    frame_frequencies = head_dim // 2 - 2 * side_frequencies
    return VisionConfig(
        **fields,
        intermediate_size=2 * fields.hidden_size,
        num_heads=fields.hidden_size // 16,
        full_layers=tuple(range((fields.depth - 1) % 8, fields.depth, 8)),
        sections=(frame_frequencies, side_frequencies, side_frequencies),
        start_token=start,
        image_token=image,
        end_token=end,
    )


def save_policy(folder: Path, config: ConfigDict, policy: Policy, trained: Any) -> Any:
    """Writes a policy for transformers and vLLM, which end responses where the policy does.

    With an adapter the folder has the merged model in float32, and the adapter alone in PEFT's
    layout in `adapter/`.

    Args:
      folder: New folder, as for `save_weights.save_hf`.
      config: Config of the run.
      policy: Policy of the run; its frozen parameters are donated, so it cannot be used afterwards.
      trained: Parameters in place of `policy.trained`.

    Returns:
      Parameters of the model in the folder.

    Raises:
      InputError: it cannot be written.
    """
    adapter = lora_config(config)
    stop = tuple(config.sampling.stop)
    if adapter is None:
        save_hf(folder, policy.config, trained, tokenizer=policy.tokenizer, stop_strings=stop)
        return trained
    from gigpo_jax.models.files.adapter_file import save_adapter
    from gigpo_jax.models.lora import layer_numbers, merge_adapter

    # In float32: bfloat16 would round most of a small change away.
    merged = merge_adapter(policy.params, trained, policy.scale)
    save_hf(
        folder,
        policy.config,
        merged,
        dtype=jnp.float32,
        tokenizer=policy.tokenizer,
        stop_strings=stop,
    )
    save_adapter(
        folder / ADAPTER,
        adapter,
        trained,
        base=config.model.path,
        numbers=layer_numbers(policy.config),
        tower=policy.config.vision.model_type if policy.config.vision is not None else "",
    )
    return merged
