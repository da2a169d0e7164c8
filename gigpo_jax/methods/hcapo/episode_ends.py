"""Log-probability of responses when the policy reads the end of the episode first, for HCAPO.

The policy of the iteration reads the step's prompt, the last text of its episode, and a closing
sentence. The sentences are ours: the authors' are not known to us.
"""

from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Self

import jax
import numpy as np
from ml_collections import ConfigDict

from gigpo_jax.config.requirements import require
from gigpo_jax.core.errors import InputError
from gigpo_jax.env_bridge.conversations import Conversation
from gigpo_jax.envs.registry import find_style
from gigpo_jax.learner.samples import Sample
from gigpo_jax.learner.scored_steps import ScoredSteps
from gigpo_jax.learner.signals.base import Signal
from gigpo_jax.learner.signals.hindsight import hindsight_prompt
from gigpo_jax.models.text.tokenizer import Tokenizer
from gigpo_jax.policy import Policy
from gigpo_jax.rl.types import Column
from gigpo_jax.trajectory import Step

SECTION = "The episode will end with: "


class EpisodeEnds(Signal):
    """One forward pass over the samples, with other prompts."""

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
    scores_steps = True

    def __init__(self, limit: int, tokenizer: Tokenizer) -> None:
        """Takes the largest number of tokens of a sample."""
        self._limit = limit
        self._tokenizer = tokenizer

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
    def is_gradable(cls, config: ConfigDict, policy: Policy, steps: Sequence[Step]) -> bool:
        """Whether prompts are text, one for each step."""
        del steps
        template = find_style(config.env.name, config.env.prompt)
        return policy.config.vision is None and not isinstance(template, Conversation)

    @classmethod
    def start(cls, config: ConfigDict, policy: Policy, mesh: jax.sharding.Mesh) -> Self:
        """Has no state; InputError if the policy reads images."""
        del mesh
        if policy.config.vision is not None:
            raise InputError(
                "what it reads of the episode's end is text alone",
                key="config.rl.algorithm",
                value=repr(config.rl.algorithm),
                fix="choose another one for a model that reads images",
            )
        sampling = config.sampling
        limit = sampling.max_prompt_tokens + sampling.max_response_tokens
        return cls(limit, policy.tokenizer)

    def compute_columns(self, scored: ScoredSteps) -> dict[str, np.ndarray]:
        """The mean over the tokens of each response, [N] f32."""
        ends = find_ends(scored.steps)
        samples = []
        for sample, step in zip(scored.samples, scored.steps, strict=True):
            samples.append(self._hindsight_sample(sample, step, ends[step.trajectory]))
        return {"hindsight_logprob": scored.score_samples(samples).means()["logprob"]}

    def _hindsight_sample(self, sample: Sample, step: Step, end: str) -> Sample:
        # The response is scored as it was sampled; only the prompt is cut.
        limit = self._limit - len(sample.response_tokens)
        prompt = hindsight_prompt(self._tokenizer, step.turn, SECTION + end, limit)
        return replace(sample, prompt_tokens=prompt, routes=None)


def find_ends(steps: Sequence[Step]) -> dict[int, str]:
    """Episode -> the last text of its environment."""
    last_steps: dict[int, Step] = {}
    for step in steps:
        last = last_steps.get(step.trajectory, step)
        last_steps[step.trajectory] = max(last, step, key=lambda candidate: candidate.place)
    return {number: step.turn.feedback for number, step in last_steps.items()}
