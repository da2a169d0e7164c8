"""A copy of the policy that scores responses with hindsight, for SERL (arXiv 2605.19447).

It reads the prompt, the context of the step (`signals.hindsight`), and a closing sentence, with
blank lines between them. What does not fit is left out of the middle of the context first, where
the authors' code cuts the end of the prompt.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from gigpo_jax.devices.memory import trained_bytes
from gigpo_jax.learner.scored_steps import CreditedSteps
from gigpo_jax.learner.signals.hindsight import HindsightSignal
from gigpo_jax.methods.serl.advantages import NO_HINDSIGHT
from gigpo_jax.methods.serl.hindsight import Hindsight
from gigpo_jax.models.decoder import DecoderConfig
from gigpo_jax.policy import Policy

CHECKPOINT_PART = "teacher"
REFRESH = 10  # iterations after which the copy is renewed, as in the authors' scripts


class Teacher(HindsightSignal):
    """The copy and its scores of response tokens.

    Attributes:
      params: trained parameters of the copy; the frozen ones are the policy's.
    """

    batch_fields = MappingProxyType({"teacher": np.float32})

    def __init__(self, config: ConfigDict, policy: Policy) -> None:
        """Copies the trained parameters of the policy.

        Args:
          config: config as from `config.resolve`; `rl.settings` has the settings of SERL.
          policy: policy at the start.

        Raises:
          InputError: the policy reads images.
        """
        super().__init__(config, policy)
        # A copy: updates donate the arrays of the policy.
        self.params = _copy_params(policy.trained)
        self._settings = config.rl.settings

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

    def compute_fields(self, credited: CreditedSteps) -> dict[str, Sequence[Any]]:
        """The copy's log-probabilities of each response, [R] f32.

        The copy is renewed every `REFRESH` iterations. From iteration `iterations` on the loss
        does not read them: zeros take their place. A step without a context has `NO_HINDSIGHT`.
        """
        scored = credited.scored
        if credited.iteration >= self._settings.iterations:
            # The field is an input of the compiled update, so it cannot be left out.
            return {"teacher": [0.0] * len(scored.samples)}
        trained, frozen = scored.policy
        if credited.iteration % REFRESH == 0:
            self.params = None  # the old copy is freed first: there are never two
            self.params = _copy_params(trained)
        hindsight = Hindsight(scored.steps, self._settings.context)
        contexts = [hindsight.describe(step) for step in scored.steps]
        # All samples are scored: hosts make the same calls whatever contexts their steps have.
        samples = self.hindsight_samples(scored, contexts)
        scores = list(scored.score(self.params, frozen, samples).logprob)
        for row, context in enumerate(contexts):
            if not context:
                scores[row] = np.full_like(scores[row], NO_HINDSIGHT)
        return {"teacher": scores}

    def checkpoint_parts(self) -> dict[str, Any]:
        """The copy, which is older than the checkpoint's policy."""
        return {CHECKPOINT_PART: self.params}

    def restore(self, checkpoint: Mapping[str, Any]) -> None:
        """Continues with the copy of a checkpoint."""
        self.params = checkpoint[CHECKPOINT_PART]


def _copy_params(params: Any) -> Any:
    return jax.tree.map(lambda x: x.copy(), params)
