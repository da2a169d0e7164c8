"""A copy of the policy that scores responses with hindsight, for SERL (arXiv 2605.19447).

It reads the prompt, the context of the step (`signals.hindsight`), and a closing sentence, with
blank lines between them. What does not fit is left out of the middle of the context first, where
the authors' code cuts the end of the prompt.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Self

import jax
import numpy as np
from ml_collections import ConfigDict

from gigpo_jax.config.requirements import require
from gigpo_jax.core.errors import InputError
from gigpo_jax.devices.memory import trained_bytes
from gigpo_jax.env_bridge.conversations import Conversation
from gigpo_jax.envs.registry import find_style
from gigpo_jax.learner.samples import Sample
from gigpo_jax.learner.scored_steps import CreditedSteps
from gigpo_jax.learner.signals.base import Signal
from gigpo_jax.learner.signals.hindsight import hindsight_prompt
from gigpo_jax.methods.serl.advantages import NO_HINDSIGHT
from gigpo_jax.methods.serl.hindsight import Hindsight
from gigpo_jax.models.decoder import DecoderConfig
from gigpo_jax.policy import Policy
from gigpo_jax.trajectory import Turn

CHECKPOINT_PART = "teacher"


class Teacher(Signal):
    """The copy and its scores of response tokens.

    Attributes:
      params: trained parameters of the copy; the frozen ones are the policy's.
    """

    batch_fields = MappingProxyType({"teacher": np.float32})
    scores_steps = True

    def __init__(self, config: ConfigDict, policy: Policy) -> None:
        """Copies the trained parameters of the policy.

        Args:
          config: config as from `config.resolve`; `rl.settings` has the settings of SERL.
          policy: policy at the start.

        Raises:
          InputError: the policy reads images.
        """
        if policy.config.vision is not None:
            raise InputError(
                "its copy of the policy reads text alone",
                key="config.rl.algorithm",
                value=repr(config.rl.algorithm),
                fix="choose another one for a model that reads images",
            )
        # A copy: updates donate the arrays of the policy.
        self.params = _copy_params(policy.trained)
        self._settings = config.rl.settings
        self._limit = config.sampling.max_prompt_tokens + config.sampling.max_response_tokens
        self._tokenizer = policy.tokenizer

    @classmethod
    def check(cls, config: ConfigDict, run: ConfigDict) -> None:
        """Checks that prompts are of single steps."""
        del run
        template = find_style(config.env.name, config.env.prompt)
        require(
            not isinstance(template, Conversation),
            config,
            "env.prompt",
            f"{config.rl.algorithm} adds a text to prompts of single steps",
            "use full, or another that is no conversation",
        )

    @classmethod
    def parameter_bytes(cls, config: ConfigDict, shape: DecoderConfig) -> dict[str, int]:
        """Bytes of the trained parameters; with an adapter, the bytes of the adapter alone."""
        return {"teacher": trained_bytes(config, shape)}

    @classmethod
    def abstract_arrays(
        cls, config: ConfigDict, policy: Policy, mesh: jax.sharding.Mesh
    ) -> dict[str, Any]:
        """The shapes of what is trained."""
        del config, mesh
        return {"teacher": policy.trained}

    @classmethod
    def start(cls, config: ConfigDict, policy: Policy, mesh: jax.sharding.Mesh) -> Self:
        """A copy of the policy at the start."""
        del mesh
        return cls(config, policy)

    def compute_fields(self, credited: CreditedSteps) -> dict[str, Sequence[Any]]:
        """The copy's log-probabilities of each response, [R] f32.

        The copy is renewed in every `refresh`-th iteration. From iteration `iterations` on the loss
        does not read them: zeros take their place. A step without a context has `NO_HINDSIGHT`.
        """
        scored = credited.scored
        if credited.iteration >= self._settings.iterations:
            # The field is an input of the compiled update, so it cannot be left out.
            return {"teacher": [0.0] * len(scored.samples)}
        trained, frozen = scored.policy
        if credited.iteration % self._settings.refresh == 0:
            self.params = None  # the old copy is freed first: there are never two
            self.params = _copy_params(trained)
        hindsight = Hindsight(
            scored.steps, self._settings.context, self._settings.trajectory_format
        )
        samples = []
        has_context = []
        for sample, step in zip(scored.samples, scored.steps, strict=True):
            context = hindsight.describe(step)
            has_context.append(bool(context))
            samples.append(self._hindsight_sample(sample, step.turn, context))
        # All samples are scored: hosts make the same calls whatever contexts their steps have.
        scores = list(scored.score(self.params, frozen, samples).logprob)
        for row, score in enumerate(scores):
            if not has_context[row]:
                scores[row] = np.full_like(score, NO_HINDSIGHT)
        return {"teacher": scores}

    def _hindsight_sample(self, sample: Sample, turn: Turn, context: str) -> Sample:
        # The experts of the rollout belong to another prompt.
        sample = replace(sample, routes=None)
        if not context:
            return sample
        # The response is scored as it was sampled; only the prompt is cut.
        room = self._limit - len(sample.response_tokens)
        prompt = hindsight_prompt(self._tokenizer, turn, context, room)
        return replace(sample, prompt_tokens=prompt)

    def checkpoint_parts(self) -> dict[str, Any]:
        """The copy, which is older than the checkpoint's policy."""
        return {CHECKPOINT_PART: self.params}

    def restore(self, checkpoint: Mapping[str, Any]) -> None:
        """Continues with the copy of a checkpoint."""
        self.params = checkpoint[CHECKPOINT_PART]


def _copy_params(params: Any) -> Any:
    return jax.tree.map(lambda x: x.copy(), params)
