"""Teachers: models whose log-probabilities of the policy's responses a method learns from.

The model is a copy of the policy, or what `rl.settings.teacher` names: a folder, or vLLM servers.
It reads tokens of the policy, so both have one tokenizer.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from gigpo_jax.config.requirements import require
from gigpo_jax.core.errors import InputError
from gigpo_jax.core.optional import optional_imports
from gigpo_jax.devices.exchange import all_hosts
from gigpo_jax.devices.memory import trained_bytes
from gigpo_jax.devices.sharded_shapes import with_shardings
from gigpo_jax.engines.base import EngineLost
from gigpo_jax.engines.remote.keys import require_urls
from gigpo_jax.learner.critic_model import check_image_settings
from gigpo_jax.learner.samples import Sample, join_continuations
from gigpo_jax.learner.scored_steps import CreditedSteps
from gigpo_jax.learner.signals.base import Signal, SignalProgram, shape_scored_batch
from gigpo_jax.learner.token_logprobs import Score, make_token_logprobs
from gigpo_jax.models.decoder import DecoderConfig, abstract_params, param_count
from gigpo_jax.models.files.folders import model_folder
from gigpo_jax.models.files.hf_config import read_config
from gigpo_jax.models.files.weights import load_hf
from gigpo_jax.models.text.tokenizer import check_vocabulary, load_tokenizer
from gigpo_jax.policy import Policy, forward_function, param_shardings
from gigpo_jax.rl.batch_logprobs import make_logprobs
from gigpo_jax.rl.types import StepBatch
from gigpo_jax.run import report

KEY = "config.rl.settings.teacher"


class Teacher(Signal):
    """The contract: a source of weights has `score`, and what else of a signal it needs.

    A method whose teacher reads other prompts than the policy has a `compute_fields` of its own,
    which calls `score`.
    """

    batch_fields = MappingProxyType({"teacher": np.float32})

    def score(self, samples: Sequence[Sample], credited: CreditedSteps) -> list[np.ndarray]:
        """Scores samples of the steps, one [R] f32 each, nats; all hosts call this together."""
        raise NotImplementedError

    def compute_fields(self, credited: CreditedSteps) -> dict[str, Sequence[Any]]:
        """Its log-probabilities of each response, [R] f32."""
        return {"teacher": self.score(credited.scored.samples, credited)}


class OwnWeights(Teacher):
    """A copy of the policy.

    Attributes:
      params: trained parameters of the copy; the frozen ones are the policy's.
      refresh: number of iterations after which a method renews the copy.
    """

    scores_steps = True  # with the policy's program
    refresh: ClassVar[int]

    def __init__(self, config: ConfigDict, policy: Policy) -> None:
        """Copies the trained parameters of the policy: updates donate its arrays."""
        self.params = self._copy(policy.trained)

    @classmethod
    def parameter_bytes(cls, config: ConfigDict, shape: DecoderConfig) -> dict[str, int]:
        """Bytes of the trained parameters; with an adapter, the bytes of the adapter alone."""
        return {"teacher": trained_bytes(config, shape)}

    @classmethod
    def abstract_arrays(
        cls, config: ConfigDict, policy: Policy, mesh: jax.sharding.Mesh
    ) -> dict[str, Any]:
        """The shapes of what is trained."""
        return {"teacher": policy.trained}

    @classmethod
    def start(cls, config: ConfigDict, policy: Policy, mesh: jax.sharding.Mesh) -> Self:
        """Copies the policy at the start."""
        return cls(config, policy)

    def score(self, samples: Sequence[Sample], credited: CreditedSteps) -> list[np.ndarray]:
        """Scores samples under the copy, which is renewed when it is due."""
        trained, frozen = credited.scored.policy
        if credited.iteration % self.refresh == 0:
            self.params = None  # the old copy is freed first: there are never two
            self.params = self._copy(trained)
        return credited.scored.score(self.params, frozen, samples).logprob

    def checkpoint_parts(self) -> dict[str, Any]:
        """The copy, which is older than the checkpoint's policy."""
        return {"teacher": self.params}

    def restore(self, checkpoint: Mapping[str, Any]) -> None:
        """Continues with the copy of a checkpoint."""
        self.params = checkpoint["teacher"]

    @staticmethod
    def _copy(params: Any) -> Any:
        return jax.tree.map(lambda x: x.copy(), params)


class FrozenModel(Teacher):
    """A model from a folder in `model.compute_dtype`: it is not trained, and layers compute in it.

    Attributes:
      params: parameters of the model.
    """

    def __init__(self, params: Any, score: Score) -> None:
        """Keeps the parameters and the function that scores with them."""
        self.params = params
        self._score = score

    @classmethod
    def is_needed(cls, config: ConfigDict) -> bool:
        """Whether the teacher is in a folder."""
        return not ServedModel.is_needed(config)

    @classmethod
    def parameter_bytes(cls, config: ConfigDict, shape: DecoderConfig) -> dict[str, int]:
        """The model's parameters."""
        dtype = jnp.dtype(config.model.compute_dtype)
        return {"teacher": param_count(cls._read_shape(config)[0]) * dtype.itemsize}

    @classmethod
    def abstract_arrays(
        cls, config: ConfigDict, policy: Policy, mesh: jax.sharding.Mesh
    ) -> dict[str, Any]:
        """The model's parameters."""
        shape, _ = cls._read_shape(config)
        params = abstract_params(shape, jnp.dtype(config.model.compute_dtype))
        return {"teacher": with_shardings(params, param_shardings(shape, mesh))}

    @classmethod
    def lower_programs(
        cls, config: ConfigDict, policy: Policy, mesh: jax.sharding.Mesh, batch: StepBatch
    ) -> Iterator[SignalProgram]:
        """The model's log-probabilities."""
        score: Any = make_logprobs(
            forward_function(config, cls._read_shape(config)[0], mesh),
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
        shape, folder = cls._read_shape(config)
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

    def score(self, samples: Sequence[Sample], credited: CreditedSteps) -> list[np.ndarray]:
        """Scores samples under the model."""
        # Another model: the experts of the rollout are not its own.
        samples = [replace(sample, routes=None) for sample in samples]
        return self._score(self.params, None, samples).logprob

    @staticmethod
    def _read_shape(config: ConfigDict) -> tuple[DecoderConfig, Path]:
        """The shape of the model of `rl.settings.teacher`, and its folder."""
        folder = model_folder(config.rl.settings.teacher, "", key=KEY)
        return read_config(folder), folder


class ServedModel(Teacher):
    """A model behind servers, which score at temperature 1; nothing of it is on our devices."""

    def __init__(self, scorer: Any) -> None:
        """Keeps the scorer, an `engines.vllm.scorer.TextScorer`."""
        self._scorer = scorer

    @classmethod
    def is_needed(cls, config: ConfigDict) -> bool:
        """Whether `rl.settings.teacher` names servers."""
        return config.rl.settings.teacher.startswith(("http://", "https://"))

    @classmethod
    def check(cls, config: ConfigDict, run: ConfigDict) -> None:
        """Checks the addresses and the temperature."""
        require_urls(config, "rl.settings.teacher")
        require(
            config.sampling.temperature == 1,
            config,
            "sampling.temperature",
            "servers of rl.settings.teacher score at temperature 1",
            "use 1.0, or a teacher from a folder",
        )

    @classmethod
    def start(cls, config: ConfigDict, policy: Policy, mesh: jax.sharding.Mesh) -> Self:
        """Connects to the servers.

        Raises:
          InputError: A server does not answer, or has another tokenizer or another model than the
            first one; or the policy reads images.
        """
        value = repr(config.rl.settings.teacher)
        if policy.config.vision is not None:
            raise InputError(
                "servers score text alone, and the policy reads images",
                key=KEY,
                value=value,
                fix="name a model folder",
            )
        with optional_imports("vllm", key=KEY, value=value):
            from gigpo_jax.engines.remote.protocol import Limits
            from gigpo_jax.engines.vllm.scorer import TextScorer
        servers = config.engine
        urls = [url.strip() for url in config.rl.settings.teacher.split(",")]
        # Each host begins with another server; all hosts may use all.
        first = jax.process_index() % len(urls)
        scorer = TextScorer(
            urls[first:] + urls[:first],
            key=os.environ.get("VLLM_API_KEY", ""),
            limits=Limits(
                start_s=servers.connect_timeout_s,
                connect_s=servers.connect_timeout_s,
                request_s=servers.request_timeout_s,
                push_s=servers.request_timeout_s,
                restarts=0,
            ),
            say=report.say,
        )
        sampling = config.sampling
        scorer.check(policy.tokenizer, sampling.max_prompt_tokens + sampling.max_response_tokens)
        return cls(scorer)

    def score(self, samples: Sequence[Sample], credited: CreditedSteps) -> list[np.ndarray]:
        """Lets the servers score samples.

        Raises:
          EngineLost: The servers of a host gave no scores.
        """
        from gigpo_jax.engines.remote.protocol import ServerFault

        # The calls of a conversation are one text: its last call has all responses.
        groups = join_continuations(samples)
        texts = []
        for group in groups:
            last = samples[group[-1]]
            texts.append(np.concatenate([last.prompt_tokens, last.response_tokens]))
        reason = ""
        rows: list[np.ndarray] = []
        try:
            rows = self._scorer.score(texts)
        except (ServerFault, InputError) as err:
            reason = f"rl.settings.teacher: {err}"
        # Together: hosts with scores would wait for the others in the update.
        if all_hosts(np.array([reason != ""])).any():
            raise EngineLost(reason or "rl.settings.teacher: another host got no scores")
        scores: list[np.ndarray] = [np.zeros(0, np.float32)] * len(samples)
        for group, row in zip(groups, rows, strict=True):
            for index in group:
                # Nothing precedes the first token, so row n belongs to token n + 1.
                first = len(samples[index].prompt_tokens) - 1
                scores[index] = row[first : first + len(samples[index].response_tokens)]
        return scores
