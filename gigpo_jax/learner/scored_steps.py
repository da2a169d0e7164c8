"""Steps with their samples and scores, and with their advantages: what signals read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from gigpo_jax.learner.samples import Sample, step_samples
from gigpo_jax.learner.token_logprobs import Score, TokenLogprobs
from gigpo_jax.trajectory import Step, StepCredit


class ScoredSteps:
    """Steps of this host, their samples, and their scores under the policy before the updates.

    Attributes:
      steps, samples: the steps, and one sample for each, without advantages.
      policy: trained and frozen parameters of the policy.
      score: function (trained parameters, frozen ones, samples) -> `TokenLogprobs`.
    """

    def __init__(self, steps: Sequence[Step], policy: tuple[Any, Any], score: Score) -> None:
        """Builds the samples; scores nothing yet."""
        self.steps = steps
        self.samples = step_samples(steps)
        self.policy = policy
        self.score = score

    # Once: several signals and saved rollouts read it, and it costs a forward pass.
    @cached_property
    def token_logprobs(self) -> TokenLogprobs:
        """The policy's scores of the responses, computed once; all hosts read them together."""
        return self.score_samples(self.samples)

    def score_samples(self, samples: Sequence[Sample]) -> TokenLogprobs:
        """Scores other samples under the policy; all hosts call this together."""
        trained, frozen = self.policy
        return self.score(trained, frozen, samples)


@dataclass(frozen=True, eq=False)
class CreditedSteps:
    """Steps with signals' columns, [N, ...] each, and advantages, before they become samples."""

    scored: ScoredSteps
    columns: Mapping[str, np.ndarray]
    credit: StepCredit
    iteration: int
