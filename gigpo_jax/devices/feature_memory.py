"""Memory of what few runs have: towers, experts, windows, states, masks of trees of texts, GPUs."""

from collections.abc import Callable

import jax.numpy as jnp
from ml_collections import ConfigDict

from gigpo_jax.models.decoder_config import DecoderConfig
from gigpo_jax.models.delta_layer import state_bytes
from gigpo_jax.models.expert_config import ExpertConfig
from gigpo_jax.models.vision.vision_config import MERGE, VisionConfig
from gigpo_jax.models.window_cache import window_length


def mask_bytes(config: ConfigDict, row_count: int) -> float:
    """Returns the bytes of masks of trees of texts.

    They are T x T a row. With its gradient a mask of cuDNN has 4 bytes a pair. Splash attention has
    two masks of 1 byte, and a copy of 4.
    """
    return row_count * config.batch.row_length**2 * 6.0


def output_bytes(config: ConfigDict, shape: DecoderConfig, chunk: int) -> int:
    """Returns the bytes of the output layer in updates on GPUs.

    XLA keeps three arrays of a chunk's logits there. Beside a trained embedding there are its copy
    in the type of the computation, the gradient, and the gradient's float32 sum over chunks.
    """
    trained = 0 if config.model.lora.rank else shape.vocab_size * shape.hidden_size
    itemsize = jnp.dtype(config.model.compute_dtype).itemsize
    return 3 * 4 * chunk * shape.vocab_size + trained * (2 * itemsize + 4)


def kept_with_experts(remat: str, shape: DecoderConfig, experts: ExpertConfig) -> int:
    """Returns the numbers that a layer with experts keeps."""
    width = shape.hidden_size
    attention = shape.num_heads * shape.head_dim
    # Rows of a token that are sent to its experts, with gaps where rows are in blocks.
    rows = 3 * experts.per_token // 2
    return {
        "offload": 0,
        "full": width,
        "attention": width + attention,
        # Products of experts are no plain products: they are computed again.
        "dots": 6 * width + experts.count,
        "none": 12 * width + rows * (3 * width + 4 * experts.width),  # about
    }[remat]


def tower_bytes(
    config: ConfigDict,
    vision: VisionConfig,
    decoder_width: int,
    row_count: int,
    kept_numbers: Callable[[str, VisionConfig], int],
) -> float:
    """Returns the bytes of the vision tower's activations.

    They are of an update or of a prefill, whichever needs more. A prefill has one layer at a
    time. Results of layers that are features too are kept as they are, and in the decoder's width.
    `kept_numbers` gives the numbers that a layer keeps of a patch, for a value of `model.remat`.
    """
    deep_layers = len(vision.deep_layers)

    def tokens_bytes(tokens: int, layer_numbers: int, dtype: str) -> int:
        patch_numbers = layer_numbers + deep_layers * vision.hidden_size
        # A token of the decoder stands for MERGE x MERGE patches of the tower.
        numbers = MERGE**2 * patch_numbers + deep_layers * decoder_width
        return tokens * numbers * jnp.dtype(dtype).itemsize

    layer_numbers = vision.depth * kept_numbers(config.model.remat, vision)
    row_tokens = row_count * config.batch.row_length
    update_bytes = tokens_bytes(row_tokens, layer_numbers, config.model.compute_dtype)
    prefill_bytes = 0
    if config.engine.name == "jax":
        prompt_tokens = max(config.engine.prefill_rows) * config.sampling.max_prompt_tokens
        layer_numbers = kept_numbers("dots", vision)
        prefill_bytes = tokens_bytes(prompt_tokens, layer_numbers, config.engine.dtype)
    return max(update_bytes, prefill_bytes)


def slot_bytes(
    config: ConfigDict, shape: DecoderConfig, slot_tokens: int, layer_bytes: int
) -> float:
    """Bytes of a slot's windows and states.

    Args:
      config: Resolved config.
      shape: Shape of the model.
      slot_tokens: Tokens of the slot in layers that see whole texts.
      layer_bytes: Bytes of a token's keys and values in a layer.
    """
    engine = config.engine
    total = 0.0
    if shape.num_window_layers:
        rows = min(max(engine.prefill_rows), engine.slots)
        window = shape.sliding_window
        length = window_length(window, slot_tokens, engine.prefill_chunk, rows)
        total += shape.num_window_layers * layer_bytes * length
    if shape.delta is not None:
        # Beside each state there is a checkpoint.
        total += (2 if engine.prefill_chunk else 1) * state_bytes(shape)
    return total
