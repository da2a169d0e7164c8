"""Arrays of a run as shapes with shardings; nothing is allocated and no weights are read."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from ml_collections import ConfigDict

from gigpo_jax.core.errors import InputError
from gigpo_jax.core.packaged import locate_file
from gigpo_jax.devices.mesh import ROWS, replicated
from gigpo_jax.devices.sharded_shapes import with_shardings
from gigpo_jax.learner.expected_tokens import segment_steps
from gigpo_jax.learner.objective import make_config_optimizer
from gigpo_jax.learner.packed_images import image_capacity
from gigpo_jax.learner.rows import response_capacity
from gigpo_jax.learner.signals.table import batch_fields, needed_signals
from gigpo_jax.models import decoder, lora
from gigpo_jax.models.expert_numbers import route_width
from gigpo_jax.models.files.hf_config import read_config
from gigpo_jax.models.files.hub import describe_source
from gigpo_jax.models.published import PUBLISHED, PUBLISHED_TEXT, PUBLISHED_VISION
from gigpo_jax.models.routes import route_dtype
from gigpo_jax.models.vision.vision import Images
from gigpo_jax.policy import Policy, lora_config, param_shardings, trained_shardings
from gigpo_jax.rl.train_step import TrainState, init_state, shard_state
from gigpo_jax.rl.types import StepBatch


@dataclass(frozen=True)
class ImageSizes:
    """The images of a prompt.

    Attributes:
      number: Number of images.
      patches: Number of patches of one image.
    """

    number: int
    patches: int


@dataclass(frozen=True)
class Arrays:
    """Arrays in memory during a whole run.

    Attributes:
      policy: Policy with shapes in place of parameters, and no tokenizer.
      state: Train state of the trained parameters.
      reference: Trained parameters of the reference policy; None: there is none.
      signals: Arrays of signals by purpose.
    """

    policy: Policy
    state: TrainState
    reference: Any
    signals: dict[str, Any]


def model_shape(config: ConfigDict) -> decoder.DecoderConfig:
    """The shape of the model in `model.path`.

    Raises:
      InputError: it is neither a folder with a model nor the name of a published one.
    """
    # A folder wins over a published name: it may hold a variant of that model.
    path = config.model.path
    if path and locate_file(path).is_dir():
        return read_config(locate_file(path))
    published = {}
    for size, shape in PUBLISHED.items():
        is_qwen = shape.model_type == "qwen2"
        published[f"Qwen2.5-{size.upper()}-Instruct" if is_qwen else size.title()] = shape
    published |= PUBLISHED_TEXT | PUBLISHED_VISION
    if Path(path).name not in published:
        raise InputError(
            "no such folder",
            key="config.model.path",
            value=repr(path),
            fix=describe_source(path)
            or f"name a folder with a config.json, or one of {', '.join(published)}",
        )
    return published[Path(path).name]


def run_arrays(config: ConfigDict, shape: decoder.DecoderConfig, mesh: Mesh) -> Arrays:
    """The arrays of a learner."""
    adapter = lora_config(config)
    shardings = trained_shardings(config, shape, mesh)
    base = with_shardings(
        decoder.abstract_params(shape, jnp.dtype(config.model.param_dtype)),
        param_shardings(shape, mesh),
    )
    trained = base
    pairs = None
    # With an adapter the base model is frozen, and only the pairs are trained.
    if adapter is not None:
        pairs = with_shardings(lora.abstract_adapter(shape, adapter), shardings)
        trained = pairs
    optimizer = make_config_optimizer(config, config.train.iterations)
    state_shardings = shard_state(optimizer, trained, shardings, replicated(mesh))
    # Traced, not run: billions of parameters need no memory here.
    state = jax.eval_shape(lambda params: init_state(params, optimizer), trained)
    # Programs are built from shapes alone; nothing reads the tokenizer.
    policy = Policy(shape, base, None, pairs)  # type: ignore[arg-type]
    signals: dict[str, Any] = {}
    for signal in needed_signals(config):
        signals |= signal.abstract_arrays(config, policy, mesh)
    return Arrays(
        policy,
        with_shardings(state, state_shardings),
        # A copy of what is trained, so of an adapter alone.
        reference=trained if config.rl.kl_coef else None,
        signals=signals,
    )


def step_batch(
    config: ConfigDict, shape: decoder.DecoderConfig, mesh: Mesh, microbatches: int
) -> StepBatch:
    """A minibatch with prompts and responses of `config.sampling`'s lengths."""
    length = config.batch.row_length
    longest = config.sampling.max_prompt_tokens + config.sampling.max_response_tokens
    # In a segment of several steps all tokens but the messages' may belong to responses.
    responses = min(segment_steps(config) * config.sampling.max_response_tokens, longest)
    capacity = response_capacity(longest, responses, responses, length)
    sharding = NamedSharding(mesh, P(None, ROWS))

    def rows_of(width: int, dtype: Any) -> jax.ShapeDtypeStruct:
        # The loop over microbatches has the first axis; rows are split over devices.
        # A field may have several numbers a token, as a part of its type.
        base = np.dtype(dtype)
        dims = (microbatches, config.batch.rows, width, *base.shape)
        return jax.ShapeDtypeStruct(dims, base.base, sharding=sharding)

    tokens = rows_of(length, jnp.int32)
    response_ids = rows_of(capacity, jnp.int32)
    response_values = rows_of(capacity, jnp.float32)
    routes = None
    if config.model.replay_routes and shape.experts is not None:
        dims = (*tokens.shape, route_width(shape))
        routes = jax.ShapeDtypeStruct(dims, route_dtype(shape.experts.count), sharding=sharding)
    signal_fields = dict(batch_fields(needed_signals(config)))
    has_kl_loss = config.rl.kl_coef and config.rl.kl_in == "loss"
    recomputes = config.rl.old_logprobs == "recompute"
    return StepBatch(
        tokens=tokens,
        positions=tokens,
        segment_ids=tokens,
        response_index=response_ids,
        responses=response_ids,
        targets=response_ids,
        behaviour=response_values,
        advantage=response_values,
        weight=response_values,
        microbatches=jax.ShapeDtypeStruct((), jnp.int32, sharding=replicated(mesh)),
        # Columns that the loss does not read are not there, as in a run.
        reference=response_values if has_kl_loss else None,
        proximal=response_values if recomputes else None,
        routes=routes,
        **jax.tree.map(lambda dtype: rows_of(capacity, dtype), signal_fields),
    )


def add_image_shapes(
    batch: StepBatch, shape: decoder.DecoderConfig, images: int, patches: int
) -> StepBatch:
    """Adds so many distinct images to each microbatch."""
    assert shape.vision is not None
    microbatches, rows, length = batch.tokens.shape
    sharding = batch.tokens.sharding
    capacity = image_capacity(images, rows)

    def array_of(*dims: int, dtype: Any = jnp.int32) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((microbatches, *dims), dtype, sharding=sharding)

    # Patches stay bytes until the device: float32 would be four times as much to send.
    values = array_of(capacity, patches, shape.vision.patch_values, dtype=jnp.uint8)
    return replace(
        batch,
        # Three positions a token: time, row and column (M-RoPE).
        positions=array_of(rows, 3, length),
        images=Images(values, array_of(capacity, 2), batch.tokens),
    )
