"""The model of a critic: its shape, its parameters and its compiled programs.

A critic is a model of its own, or a value head on the hidden states of the policy
(`critic.kind`). A critic may have several values a token.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from gigpo_jax.core.errors import InputError
from gigpo_jax.devices.mesh import replicated
from gigpo_jax.devices.sharded_shapes import with_shardings
from gigpo_jax.learner.objective import config_algorithm
from gigpo_jax.learner.samples import Sample
from gigpo_jax.learner.token_logprobs import make_token_arrays, over_microbatches
from gigpo_jax.models import decoder
from gigpo_jax.models.files.folders import model_folder
from gigpo_jax.models.files.hf_config import read_config
from gigpo_jax.models.files.save_weights import save_hf
from gigpo_jax.models.files.weights import load_hf
from gigpo_jax.models.value_head import predict_values
from gigpo_jax.policy import Policy, forward_function, param_shardings, trunk_function
from gigpo_jax.rl.critic import Values, make_value_update
from gigpo_jax.rl.optimizer import make_optimizer
from gigpo_jax.rl.train_step import TrainState, Update, init_state, shard_state
from gigpo_jax.rl.types import StepBatch

HEAD = "value_head"
FOLDER = "critic"  # in an exported folder

# (critic's parameters, (trained, frozen) parameters of the policy, samples) -> value before each
# response token, one [R] f32 a sample, or [R, values]
TokenValues = Callable[[Any, tuple[Any, Any], Sequence[Sample]], list[np.ndarray]]


class TrainPrograms(NamedTuple):
    """Programs and state shardings of a critic's training.

    Attributes:
      init: function (parameters) -> train state.
      update: jitted function (train state, minibatch, policy) -> (train state, metrics).
      state_shardings: sharding of each leaf of the train state.
    """

    init: Callable[[Any], TrainState]
    update: Update
    state_shardings: TrainState


def train_programs(
    config: ConfigDict, policy: Policy, mesh: jax.sharding.Mesh, params: Any
) -> TrainPrograms:
    """Builds the programs of a critic's updates without compiling them.

    Args:
      config: config as from `config.resolve`, with a critic.
      policy: policy beside the critic.
      mesh: mesh as from `make_mesh`.
      params: the critic's parameters, or their shapes, with shardings.
    """
    # The policy's optimizer at a constant rate: the targets move as long as the policy learns.
    changes = {
        "lr": config.critic.lr,
        "schedule": "constant",
    }
    optimizer = make_optimizer(**config.optim.to_dict() | changes)
    shardings = jax.tree.map(lambda x: x.sharding, params)
    state_shardings = shard_state(optimizer, params, shardings, replicated(mesh))
    learn = make_value_update(
        value_function(config, policy, mesh),
        optimizer,
        # 0 stands for no clip.
        clip=config.critic.clip or np.inf,
        state_shardings=state_shardings,
    )
    init = partial(init_state, optimizer=optimizer)
    return TrainPrograms(init, learn, state_shardings)


def critic_shape(config: ConfigDict, shape: decoder.DecoderConfig) -> decoder.DecoderConfig:
    """The critic's shape beside a policy's, with a value head.

    Raises:
      InputError: `critic.path` holds no model, or one of another vocabulary or that reads other
        images.
    """
    path = config.critic.path
    count = value_count(config)
    if not path:
        return replace(shape, value_head=count)
    if not Path(path).is_dir():
        raise InputError(
            "no such folder",
            key="config.critic.path",
            value=repr(path),
            fix="name a model folder or leave the key out",
        )
    own_shape = read_config(Path(path))
    vocabulary = shape.vocab_size
    # Policy and critic read the same token ids.
    if own_shape.vocab_size != vocabulary:
        raise InputError(
            f"has {own_shape.vocab_size} tokens, the policy {vocabulary}",
            key="config.critic.path",
            value=repr(path),
            fix="name a model with the policy's tokenizer",
        )
    check_image_settings(own_shape, shape, key="config.critic.path", value=repr(path))
    if own_shape.value_head not in (0, count):
        raise InputError(
            f"a critic of {own_shape.value_head} value(s) a token, {config.rl.algorithm} needs "
            f"{count}",
            key="config.critic.path",
            value=repr(path),
            fix="name a critic of the same algorithm, or a language model",
        )
    return replace(own_shape, value_head=count)


def value_count(config: ConfigDict) -> int:
    """Number of values a token of the critic."""
    return config_algorithm(config).critic_values


def check_image_settings(
    own_shape: decoder.DecoderConfig, shape: decoder.DecoderConfig, *, key: str, value: str
) -> None:
    """Checks that a model beside the policy, of `shape`, reads images as the policy does.

    Raises:
      InputError: it does not; `key` and `value` name it.
    """
    # Images are cut into patches once, for the policy; the other model reads the same patches.
    if _image_settings(own_shape) != _image_settings(shape):
        raise InputError(
            "its vision tower, image token or bounds of image sizes are not those of the policy",
            key=key,
            value=value,
            fix="name a model that reads images as the policy does",
        )


def _image_settings(shape: decoder.DecoderConfig) -> tuple[int, int, int, int] | None:
    """Returns the settings that the images of a batch depend on; None for a model of text alone."""
    vision = shape.vision
    if vision is None:
        return None
    return vision.image_token, vision.patch_size, vision.min_pixels, vision.max_pixels


def abstract_critic_params(config: ConfigDict, policy: Policy, mesh: jax.sharding.Mesh) -> Any:
    """The shapes of the critic's parameters, float32, with their shardings."""
    shape = critic_shape(config, policy.config)
    params = decoder.abstract_params(shape)
    leaf_shardings = param_shardings(shape, mesh)
    if config.critic.kind == "head":
        params = {HEAD: params[HEAD]}
        leaf_shardings = {HEAD: leaf_shardings[HEAD]}
    return with_shardings(params, leaf_shardings)


def start_params(config: ConfigDict, policy: Policy, mesh: jax.sharding.Mesh) -> Any:
    """Returns the critic's parameters before its first update.

    They are read from `critic.path`, else copied from the policy with a value head of zeros. A
    head on the policy starts with zeros too.

    Raises:
      InputError: `critic.path` holds no model, or one of another vocabulary or that reads other
        images.
    """
    abstract = abstract_critic_params(config, policy, mesh)
    if config.critic.kind == "head":
        # Values of 0: the first advantages come from the rewards alone.
        return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype, device=x.sharding), abstract)
    folder = config.critic.path or model_folder(config.model.path, config.model.revision)
    shardings = jax.tree.map(lambda x: x.sharding, abstract)
    return load_hf(folder, shardings=shardings, value_head=value_count(config))[1]


def value_function(config: ConfigDict, policy: Policy, mesh: jax.sharding.Mesh) -> Values:
    """Builds the critic as `rl.critic.Values`, whose other parameters are the policy's.

    They are (trained, frozen). A critic with its own model ignores them.
    """
    hidden_states: Callable[[Any, Any, StepBatch], jax.Array]
    if config.critic.kind == "head":
        # The policy is an argument that is not differentiated: the loss of the head
        # does not change it.
        forward = forward_function(config, policy.config, mesh)

        def hidden_states(params: Any, policy: Any, batch: StepBatch) -> jax.Array:
            del params
            trained, frozen = policy
            inputs = (batch.tokens, batch.positions, batch.segment_ids, batch.images)
            return forward(trained, frozen, *inputs)[0]

    else:
        trunk = trunk_function(config, critic_shape(config, policy.config), mesh)

        def hidden_states(params: Any, policy: Any, batch: StepBatch) -> jax.Array:
            del policy
            return trunk(params, batch.tokens, batch.positions, batch.segment_ids, batch.images)[0]

    def values(params: Any, policy: Any, batch: StepBatch) -> jax.Array:
        # Hidden state p has read the tokens up to p: it predicts the return before token p + 1.
        hidden = hidden_states(params, policy, batch)
        hidden = jnp.take_along_axis(hidden, batch.response_index[..., None], axis=1)
        return predict_values(params, hidden)

    return values


def make_token_values(config: ConfigDict, policy: Policy, mesh: jax.sharding.Mesh) -> TokenValues:
    """Builds the values function of samples, which all hosts call together, each with its own."""
    token_arrays = make_token_arrays(config, mesh, values_program(config, policy, mesh))

    def token_values(
        params: Any, policy: tuple[Any, Any], samples: Sequence[Sample]
    ) -> list[np.ndarray]:
        return token_arrays(params, policy, samples)[0]

    return token_values


def values_program(
    config: ConfigDict, policy: Policy, mesh: jax.sharding.Mesh
) -> Callable[..., Any]:
    """Returns the jitted function (critic's parameters, policy's, minibatch) -> values at tokens.

    The values are a tuple of one f32 array, [M, B, C] or [M, B, C, values], at response tokens.
    """
    values = value_function(config, policy, mesh)

    def measure(params: Any, policy: Any, batch: StepBatch) -> tuple[jax.Array, ...]:
        return (values(params, policy, batch),)

    return over_microbatches(measure)


def save_critic(folder: Path, config: ConfigDict, policy: Policy, trunk: Any, params: Any) -> None:
    """Writes a critic as a token classifier for transformers and `critic.path`, a label a value.

    Args:
      folder: folder as for `save_weights.save_hf`.
      config: config of the run.
      policy: policy beside the critic.
      trunk: parameters of the policy, which a value head reads.
      params: parameters of the critic.

    Raises:
      InputError: the folder cannot be written.
    """
    if config.critic.kind == "head":
        # A token classifier has the value head in the place of the output head.
        params = {name: leaf for name, leaf in trunk.items() if name != "head"} | params
    shape = critic_shape(config, policy.config)
    save_hf(folder, shape, params, dtype=jnp.float32, tokenizer=policy.tokenizer)
