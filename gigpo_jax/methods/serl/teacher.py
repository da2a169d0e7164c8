"""A teacher that scores responses with hindsight, for SERL (arXiv 2605.19447).

It reads the prompt, the context of the step (`signals.hindsight`), and a closing sentence, with
blank lines between them. What does not fit is left out of the middle of the context first, where
the authors' code cuts the end of the prompt.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from gigpo_jax.learner.scored_steps import CreditedSteps
from gigpo_jax.learner.signals.hindsight import HindsightSignal
from gigpo_jax.learner.teachers import OwnWeights
from gigpo_jax.methods.serl.advantages import NO_HINDSIGHT
from gigpo_jax.methods.serl.hindsight import Hindsight
from gigpo_jax.policy import Policy


class HindsightTeacher(OwnWeights, HindsightSignal):
    """A copy of the policy, and what it reads."""

    refresh = 10  # as in the authors' scripts

    def __init__(self, config: ConfigDict, policy: Policy) -> None:
        """Starts both.

        Raises:
          InputError: the policy reads images.
        """
        HindsightSignal.__init__(self, config, policy)
        super().__init__(config, policy)
        self._settings = config.rl.settings

    def compute_fields(self, credited: CreditedSteps) -> dict[str, Sequence[Any]]:
        """The teacher's log-probabilities of each response, [R] f32.

        From iteration `iterations` on the loss does not read them: zeros take their place. A step
        without a context has `NO_HINDSIGHT`.
        """
        scored = credited.scored
        if credited.iteration >= self._settings.iterations:
            # The field is an input of the compiled update, so it cannot be left out.
            return {"teacher": [0.0] * len(scored.samples)}
        hindsight = Hindsight(scored.steps, self._settings.context)
        contexts = [hindsight.describe(step) for step in scored.steps]
        # All samples are scored: hosts make the same calls whatever contexts their steps have.
        scores = self.score(self.hindsight_samples(scored, contexts), credited)
        for row, context in enumerate(contexts):
            if not context:
                scores[row] = np.full_like(scores[row], NO_HINDSIGHT)
        return {"teacher": scores}
