"""The critic of a run: a model of its own, or a value head on the hidden states of the policy, and its updates.

It estimates the return before each response token; the estimate at the last prompt token is the value of the step.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from gigpo_jax.batching import Sample
from gigpo_jax.columns.token_logprobs import make_token_arrays, over_microbatches
from gigpo_jax.errors import InputError
from gigpo_jax.models import qwen2
from gigpo_jax.models.hf_config import read_config
from gigpo_jax.models.weights import load_hf, save_hf
from gigpo_jax.policy import Policy, forward_function, model_folder, shardings, trunk_function
from gigpo_jax.rl import update
from gigpo_jax.rl.critic import Values, make_value_update
from gigpo_jax.rl.types import StepBatch
from gigpo_jax.run import partition
from gigpo_jax.run.checkpoint import newest_params

HEAD = "value_head"
CHECKPOINT = "critic_"  # begins the names of the critic's parts of a checkpoint
FOLDER = "critic"  # in an exported folder


class Critic:
    """Holds the critic's train state and what changes it.

    Attributes:
      state: its parameters, optimizer and counters; replaced by every update.
    """

    def __init__(self, config: ConfigDict, policy: Policy, mesh: jax.sharding.Mesh) -> None:
        """Starts as `start_params`; compiles nothing yet.

        Args:
          config: as from `config.resolve`, with a critic.
          policy: beside it.
          mesh: as from `partition.make_mesh`.

        Raises:
          InputError: of `start_params`.
        """
        params = start_params(config, policy, mesh)
        init, self._update, places = train_programs(config, policy, mesh, params)
        self.state = jax.jit(init, out_shardings=places)(params)
        self._values = make_token_values(config, policy, mesh)

    @property
    def compile_count(self) -> int:
        """How many programs were compiled for updates."""
        return self._update._cache_size()  # type: ignore[attr-defined]

    def values(self, policy: Any, samples: Sequence[Sample]) -> list[np.ndarray]:
        """The value before each response token, one [R] f32 a sample; `policy` as for `update`."""
        return self._values(self.state.params, policy, samples)

    def update(self, batch: StepBatch, policy: Any) -> update.Metrics:
        """One update from a minibatch with `values`; `policy`: the trained and the frozen parameters of the policy."""
        self.state, metrics = self._update(self.state, batch, policy)
        return metrics


def train_programs(
    config: ConfigDict, policy: Policy, mesh: jax.sharding.Mesh, params: Any
) -> tuple[Callable[[Any], update.TrainState], update.Update, update.TrainState]:
    """A function (parameters) -> train state, the jitted update, and where each leaf of the state lives.

    `params` are the critic's, or their shapes, with shardings.
    """
    own = {"lr": config.critic.lr, "grad_clip": config.critic.grad_clip}
    optimizer = update.make_optimizer(**config.optim.to_dict() | own | {"schedule": "constant"})
    where = jax.tree.map(lambda x: x.sharding, params)
    places = update.shard_state(optimizer, params, where, partition.replicated(mesh))
    values, clip = value_function(config, policy, mesh), config.critic.clip or np.inf
    learn = make_value_update(values, optimizer, clip=clip, state_shardings=places)
    return partial(update.init_state, optimizer=optimizer), learn, places


def critic_shape(config: ConfigDict, policy: Policy) -> qwen2.Qwen2Config:
    """The shape of the model that the critic reads hidden states of, with a value head.

    Raises:
      InputError: `critic.path` holds no model, or one of another vocabulary or that reads other images.
    """
    path, vocabulary = config.critic.path, policy.config.vocab_size
    if path and not Path(path).is_dir():
        raise InputError(f"config.critic.path={path!r}: no such folder; name a model folder or leave the key out")
    shape = read_config(Path(path)) if path else policy.config
    if shape.vocab_size != vocabulary:
        raise InputError(
            f"config.critic.path={path!r}: has {shape.vocab_size} tokens, the policy {vocabulary}; name a model with "
            "the policy's tokenizer"
        )
    if _reads(shape) != _reads(policy.config):
        raise InputError(
            f"config.critic.path={path!r}: its vision tower, image token or bounds of image sizes are not those of the "
            "policy; name a model that reads images as the policy does"
        )
    return replace(shape, value_head=True)


def _reads(shape: qwen2.Qwen2Config) -> tuple[int, int, int] | None:
    """What the images of a batch depend on; None for a model of text alone."""
    vision = shape.vision
    return None if vision is None else (vision.image_token, vision.min_pixels, vision.max_pixels)


def abstract_params(config: ConfigDict, policy: Policy, mesh: jax.sharding.Mesh) -> Any:
    """The shapes of the critic's parameters, float32, with their shardings."""
    shape = critic_shape(config, policy)
    params, where = qwen2.abstract_params(shape), shardings(shape, mesh)
    if config.critic.kind == "head":
        params, where = {HEAD: params[HEAD]}, {HEAD: where[HEAD]}
    return jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), params, where)


def start_params(config: ConfigDict, policy: Policy, mesh: jax.sharding.Mesh) -> Any:
    """The critic of `critic.path`, else the policy's weights with values of 0; a value head alone starts at 0.

    Raises:
      InputError: `critic.path` holds no model, or one of another vocabulary or that reads other images.
    """
    abstract = abstract_params(config, policy, mesh)
    where = jax.tree.map(lambda x: x.sharding, abstract)
    if config.critic.kind == "head":
        return jax.tree.map(lambda x, s: jnp.zeros(x.shape, x.dtype, device=s), abstract, where)
    return load_hf(
        config.critic.path or model_folder(config.model.path, config.model.revision), shardings=where, value_head=True
    )[1]


def value_function(config: ConfigDict, policy: Policy, mesh: jax.sharding.Mesh) -> Values:
    """Builds the critic as `rl.critic.Values`; its other parameters are the policy's, trained and frozen."""
    hidden: Callable[[Any, Any, StepBatch], jax.Array]
    if config.critic.kind == "head":
        forward = forward_function(config, policy.config, mesh)

        def hidden(params: Any, policy: Any, batch: StepBatch) -> jax.Array:
            del params
            return forward(*policy, batch.tokens, batch.positions, batch.segment_ids, batch.images)[0]

    else:
        trunk = trunk_function(config, critic_shape(config, policy), mesh)

        def hidden(params: Any, policy: Any, batch: StepBatch) -> jax.Array:
            del policy
            return trunk(params, batch.tokens, batch.positions, batch.segment_ids, batch.images)[0]

    def values(params: Any, policy: Any, batch: StepBatch) -> jax.Array:
        found = jnp.take_along_axis(hidden(params, policy, batch), batch.response_index[..., None], axis=1)
        return qwen2.values(params, found)

    return values


def make_token_values(
    config: ConfigDict, policy: Policy, mesh: jax.sharding.Mesh
) -> Callable[[Any, Any, Sequence[Sample]], list[np.ndarray]]:
    """Builds a function (critic's parameters, the policy's, samples) -> value before each token, one [R] f32 a sample.

    All hosts call it together, each with its own samples.
    """
    arrays = make_token_arrays(config, mesh, values_program(config, policy, mesh))
    return lambda params, policy, samples: arrays(params, policy, samples)[0]


def values_program(config: ConfigDict, policy: Policy, mesh: jax.sharding.Mesh) -> Callable[..., Any]:
    """The jitted function (critic's parameters, the policy's, minibatch) -> ([M, B, C] f32,)."""
    values = value_function(config, policy, mesh)
    return over_microbatches(lambda *of: (values(*of),))


def saved_values(
    config: ConfigDict, policy: Policy, mesh: jax.sharding.Mesh, checkpoints: Path
) -> Callable[[Any, Sequence[Sample]], list[np.ndarray]]:
    """As `make_token_values`, of the newest checkpoint's critic, or of the start where there is none."""
    params, version = newest_params(checkpoints, abstract_params(config, policy, mesh), f"{CHECKPOINT}params")
    params = params if version else start_params(config, policy, mesh)
    return partial(make_token_values(config, policy, mesh), params)


def save_critic(folder: Path, config: ConfigDict, policy: Policy, trunk: Any, params: Any) -> None:
    """Writes a critic for transformers, as a token classifier with one label, and for `critic.path`.

    Args:
      folder: see `weights.save_hf`.
      config: of the run.
      policy: beside it.
      trunk: the policy's parameters, for a value head on them.
      params: the critic's.

    Raises:
      InputError: it cannot be written.
    """
    shape = critic_shape(config, policy)
    whole = params if config.critic.kind == "model" else {n: x for n, x in trunk.items() if n != "head"} | params
    save_hf(folder, shape, whole, dtype=jnp.float32, tokenizer=policy.tokenizer)
