"""Log-probability of responses when the policy reads the end of the episode first, for HCAPO.

The policy of the iteration reads the step's prompt, the last text of its episode, and a closing
sentence. The sentences are ours: the authors' are not known to us.
"""

from collections.abc import Sequence
from types import MappingProxyType

import numpy as np

from gigpo_jax.learner.scored_steps import ScoredSteps
from gigpo_jax.learner.signals.hindsight import HindsightSignal
from gigpo_jax.learner.signals.policy_scores import token_means
from gigpo_jax.rl.column import Column
from gigpo_jax.trajectory import Step

SECTION = "The episode will end with: "


class EpisodeEnds(HindsightSignal):
    """The scores under the policy itself."""

    columns = MappingProxyType(
        {
            "hindsight_logprob": Column(
                "float32",
                None,
                "nats; mean over the response's tokens under the policy before the "
                "updates, behind a prompt that tells the end of the episode",
            ),
        }
    )

    def compute_columns(self, scored: ScoredSteps) -> dict[str, np.ndarray]:
        """The mean over the tokens of each response, [N] f32."""
        ends = find_ends(scored.steps)
        contexts = [SECTION + ends[step.trajectory] for step in scored.steps]
        samples = self.hindsight_samples(scored, contexts)
        scores = scored.score_samples(samples)
        return {"hindsight_logprob": token_means(scores.logprob)}


def find_ends(steps: Sequence[Step]) -> dict[int, str]:
    """Episode -> the last text of its environment."""
    last_steps: dict[int, Step] = {}
    for step in steps:
        last = last_steps.get(step.trajectory, step)
        last_steps[step.trajectory] = max(last, step, key=lambda candidate: candidate.turn_index)
    return {number: step.turn.feedback for number, step in last_steps.items()}
