"""Log-probabilities of responses under another model, for on-policy distillation.

The teacher reads the prompts as the policy does, token by token, so both need one tokenizer. Its
parameters are in `model.compute_dtype`: they are not trained, and layers compute in that type.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from gigpo_jax.core.errors import InputError
from gigpo_jax.devices.sharded_shapes import with_shardings
from gigpo_jax.learner.critic_model import check_image_settings
from gigpo_jax.learner.scored_steps import CreditedSteps
from gigpo_jax.learner.signals.base import Signal, SignalProgram, shape_scored_batch
from gigpo_jax.learner.token_logprobs import Score, make_token_logprobs
from gigpo_jax.methods.opd import is_served
from gigpo_jax.models.decoder import DecoderConfig, abstract_params, param_count
from gigpo_jax.models.files.folders import model_folder
from gigpo_jax.models.files.hf_config import read_config
from gigpo_jax.models.files.weights import load_hf
from gigpo_jax.models.text.tokenizer import check_vocabulary, load_tokenizer
from gigpo_jax.policy import Policy, forward_function, param_shardings
from gigpo_jax.rl.batch_logprobs import make_logprobs
from gigpo_jax.rl.types import StepBatch

KEY = "config.rl.settings.teacher"


class FrozenTeacher(Signal):
    """A model that scores responses and is not trained.

    Attributes:
      params: parameters of the model.
    """

    batch_fields = MappingProxyType({"teacher": np.float32})

    def __init__(self, params: Any, score: Score) -> None:
        """Keeps the parameters and the function that scores with them."""
        self.params = params
        self._score = score

    @classmethod
    def is_needed(cls, config: ConfigDict) -> bool:
        """Whether the teacher is a model from a folder."""
        return not is_served(config.rl.settings.teacher)

    @classmethod
    def parameter_bytes(cls, config: ConfigDict, shape: DecoderConfig) -> dict[str, int]:
        """The teacher's parameters."""
        del shape
        dtype = jnp.dtype(config.model.compute_dtype)
        return {"teacher": param_count(teacher_shape(config)) * dtype.itemsize}

    @classmethod
    def abstract_arrays(
        cls, config: ConfigDict, policy: Policy, mesh: jax.sharding.Mesh
    ) -> dict[str, Any]:
        """The teacher's parameters."""
        del policy
        shape = teacher_shape(config)
        params = abstract_params(shape, jnp.dtype(config.model.compute_dtype))
        return {"teacher": with_shardings(params, param_shardings(shape, mesh))}

    @classmethod
    def lower_programs(
        cls, config: ConfigDict, policy: Policy, mesh: jax.sharding.Mesh, batch: StepBatch
    ) -> Iterator[SignalProgram]:
        """The teacher's log-probabilities."""
        score: Any = make_logprobs(
            forward_function(config, teacher_shape(config), mesh),
            chunk=config.batch.logprob_chunk,
            temperature=config.sampling.temperature,
        )
        params = cls.abstract_arrays(config, policy, mesh)["teacher"]
        lowered = score.lower(params, replace(shape_scored_batch(config, batch), routes=None))
        yield SignalProgram("teacher", lowered, every_epoch=False)

    @classmethod
    def start(cls, config: ConfigDict, policy: Policy, mesh: jax.sharding.Mesh) -> Self:
        """Reads the teacher from `rl.settings.teacher`.

        Raises:
          InputError: the folder holds no model, or one whose tokenizer or images differ from the
            policy's.
        """
        folder = teacher_folder(config)
        shape = read_config(folder)
        path = repr(config.rl.settings.teacher)
        tokenizers = (load_tokenizer(folder), policy.tokenizer)
        own, other = (one.backend.get_vocab(with_added_tokens=True) for one in tokenizers)
        if own != other:
            raise InputError(
                "its tokens are not those of the policy",
                key=KEY,
                value=path,
                fix="name a model with the policy's tokenizer",
            )
        check_image_settings(shape, policy.config, key=KEY, value=path)
        dtype = jnp.dtype(config.model.compute_dtype)
        shape, params = load_hf(folder, dtype=dtype, shardings=param_shardings(shape, mesh))
        num_tokens = check_vocabulary(policy.tokenizer, shape.vocab_size, folder)
        teacher = Policy(replace(shape, num_tokens=num_tokens), None, policy.tokenizer)
        # The temperature of the policy's own log-probabilities: the two are compared.
        score = make_token_logprobs(config, teacher, mesh, config.sampling.temperature)
        return cls(params, score)

    def compute_fields(self, credited: CreditedSteps) -> dict[str, Sequence[Any]]:
        """The teacher's log-probabilities of each response, [R] f32."""
        # Another model: the experts of the rollout are not its own.
        samples = [replace(sample, routes=None) for sample in credited.scored.samples]
        return {"teacher": self._score(self.params, None, samples).logprob}


def teacher_folder(config: ConfigDict) -> Path:
    """The folder of `rl.settings.teacher`.

    Raises:
      InputError: there is none.
    """
    return model_folder(config.rl.settings.teacher, "", key=KEY)


def teacher_shape(config: ConfigDict) -> DecoderConfig:
    """The shape of the teacher's model."""
    return read_config(teacher_folder(config))
