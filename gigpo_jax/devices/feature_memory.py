"""Memory of what few runs have: towers, experts, windows, states, masks of trees of texts, GPUs."""

import math
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from gigpo_jax.devices.mesh import RULES
from gigpo_jax.models.decoder import DecoderConfig, param_count
from gigpo_jax.models.delta_config import DeltaConfig
from gigpo_jax.models.delta_layer import state_bytes
from gigpo_jax.models.delta_rule import CHUNK
from gigpo_jax.models.expert_config import ExpertConfig
from gigpo_jax.models.expert_numbers import route_width
from gigpo_jax.models.lora import LoraConfig, abstract_adapter, adapter_axes
from gigpo_jax.models.routes import route_dtype
from gigpo_jax.models.vision.vision_config import MERGE, VisionConfig
from gigpo_jax.models.window_cache import window_length


def update_bytes(
    config: ConfigDict,
    shape: DecoderConfig,
    tokens: int,
    shards: int,
    kept: float,
    logits: float,
    platform: str,
) -> float:
    """Returns the bytes that an update needs at once, beside parameters and gradients.

    Beside the kept activations, on GPUs this is the output layer, an MLP, or on several devices a
    second set of gradients; on TPUs that split parameters the output layer with a second set, or
    without kept activations the optimizer's step.

    Args:
      config: Resolved config.
      shape: Shape of the model.
      tokens: Tokens of a device in a microbatch.
      shards: Number of devices that split the parameters.
      kept: Bytes of the activations that the layers keep for the gradient.
      logits: Bytes of two float32 arrays of a chunk's logits.
      platform: As for `memory.memory_estimate`.
    """
    itemsize = jnp.dtype(config.model.compute_dtype).itemsize
    is_trained = not config.model.lora.rank
    # `tensor` splits the vocabulary; over `fsdp` the embedding is gathered.
    embedding = shape.vocab_size * shape.hidden_size / max(1, config.mesh.tensor)
    # Of the output layer the float32 sum of gradients over chunks, and in the type of the
    # computation the gradient of a chunk.
    sums = 4 * embedding * is_trained
    needed = logits
    if platform == "gpu":
        # Forward there is a third array of logits.
        copied = itemsize * embedding
        output = copied + max(1.5 * logits, logits + copied * is_trained + sums)
        # Gate, up, their product, and the gradient of each.
        mlp = 0 if shape.experts else 6 * itemsize * tokens * shape.intermediate_size + sums
        needed = max(output, mlp, 4 * param_count(shape) / shards if shards > 1 and sums else 0)
    splits_on_tpu = platform == "tpu" and shards > 1
    is_dense = is_trained and shape.experts is None
    parameters = param_count(shape) / shards
    if splits_on_tpu:
        # The whole embedding in two layouts, its gradient, and the gradient of its rows. Parameters
        # in the type of the computation; gaps between many arrays, of a trained model without
        # experts, are as large as a second set of gradients.
        needed = 2 * itemsize * embedding + 2 * sums
        needed += (4 if is_dense else itemsize) * parameters + (0 if is_trained else logits)
    if shape.delta is not None:
        # Layers alternate: their parameters are slices of a stack, and so are their gradients.
        embeddings = shape.vocab_size * shape.hidden_size * (2 - shape.tie_word_embeddings)
        layers = param_count(shape) - embeddings
        needed += (4 * is_trained + jnp.dtype(config.model.param_dtype).itemsize) * layers / shards
        needed += tokens * _delta_numbers(shape, shape.delta) * 4
        if splits_on_tpu:
            # Layers that are no loop keep queries, their gate, and an array of the MLP.
            alone = sum(span.stop - span.start == 1 for span in shape.layer_spans)
            numbers = 2 * shape.num_heads * shape.head_dim + shape.intermediate_size
            needed += alone * tokens * numbers * itemsize
    if config.batch.share_prefixes and not config.model.replay_routes and platform != "cpu":
        # Masks of trees are T x T a row. With its gradient a mask of cuDNN has 4 bytes a pair.
        # Splash attention has two masks of 1 byte, and a copy of 4.
        needed += tokens * config.batch.row_length * 6
    # The optimizer's step has no activations. Its results and gaps are nearly four sets of
    # gradients where memory is free; where it is short, the compiler leaves fewer gaps.
    optimizer = 15 * parameters if splits_on_tpu and is_dense else 0
    return max(kept + needed, optimizer)


def adapter_shards(config: ConfigDict, shape: DecoderConfig, mesh: Mapping[str, int]) -> float:
    """Returns how many devices split a number of the adapter, as a mean over its numbers."""
    adapter = LoraConfig.from_settings(config.model.lora)
    # The axes of pairs that no axis of the mesh splits are whole on each device.
    axes = jax.tree.leaves(adapter_axes(shape, adapter), is_leaf=lambda x: isinstance(x, tuple))
    sizes = [leaf.size for leaf in jax.tree.leaves(abstract_adapter(shape, adapter))]
    local = sum(
        size / math.prod(mesh.get(RULES[name] or "", 1) for name in names)
        for size, names in zip(sizes, axes, strict=True)
    )
    return sum(sizes) / local


def _delta_numbers(shape: DecoderConfig, delta: DeltaConfig) -> float:
    """Returns the float32 numbers of a token that the backward pass of a delta-net layer holds."""
    # The convolution's result with three masks of a byte, six arrays of values, and three of
    # products of a chunk's tokens.
    values = delta.value_heads * delta.value_dim
    products = delta.value_heads * CHUNK
    return 1.75 * delta.channels + 6 * values + 3 * products + shape.hidden_size


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
    """Bytes of a slot's windows and states, and of the experts of its tokens.

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
    if config.model.replay_routes and shape.experts is not None:
        total += slot_tokens * route_width(shape) * route_dtype(shape.experts.count).itemsize
    return total
