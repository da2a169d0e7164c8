"""Log-probability of a task's known answer behind the prompt of each step, for IGPO."""

from collections.abc import Sequence
from types import MappingProxyType
from typing import Self

import jax
import numpy as np
from ml_collections import ConfigDict

from gigpo_jax.config.requirements import require
from gigpo_jax.envs import registry
from gigpo_jax.learner.samples import Sample
from gigpo_jax.learner.scored_steps import ScoredSteps
from gigpo_jax.learner.signals.base import Signal
from gigpo_jax.learner.signals.policy_scores import token_means
from gigpo_jax.models.text.continuation import continue_response
from gigpo_jax.models.text.tokenizer import Tokenizer
from gigpo_jax.policy import Policy
from gigpo_jax.rl.column import Column
from gigpo_jax.trajectory import Step


class KnownAnswers(Signal):
    """Forward pass over the prompts, each followed by the answer."""

    columns = MappingProxyType(
        {
            "answer_logprob": Column(
                "float32",
                None,
                "nats; mean over the tokens of the known answer, behind the step's prompt",
            ),
        }
    )
    reads_steps_alone = "measures what the observation after a step tells, and {} may stand between"
    scores_steps = True

    def __init__(self, config: ConfigDict, tokenizer: Tokenizer) -> None:
        """Reads the length limits of samples, and the environment's words before an answer."""
        sampling = config.sampling
        self._tokenizer = tokenizer
        self._limit = sampling.max_prompt_tokens + sampling.max_response_tokens
        prefix = registry.spec(config.env.name).answer_prefix
        self._prefix = tokenizer.encode(continue_response(tokenizer, prefix))

    @classmethod
    def check(cls, config: ConfigDict, run: ConfigDict) -> None:
        """Checks that tasks have known answers."""
        require(
            not run.env.mix,
            run,
            "rl.algorithm",
            "it reads the known answers of one environment",
            "leave env.mix out, or choose another rl.algorithm",
        )
        require(
            registry.spec(config.env.name).answer_prefix != "",
            config,
            "env.name",
            f"{config.rl.algorithm} needs tasks with a known answer",
            "use the environment search, which has them",
        )

    @classmethod
    def is_gradable(cls, config: ConfigDict, policy: Policy, steps: Sequence[Step]) -> bool:
        """Whether every task has a known answer."""
        del config, policy
        return all(step.episode.task.answer for step in steps)

    @classmethod
    def start(cls, config: ConfigDict, policy: Policy, mesh: jax.sharding.Mesh) -> Self:
        """Makes the signal, which has no state."""
        del mesh
        return cls(config, policy.tokenizer)

    def compute_columns(self, scored: ScoredSteps) -> dict[str, np.ndarray]:
        """The mean over the tokens of each answer, [N] f32."""
        samples = [self._answer_sample(step) for step in scored.steps]
        scores = scored.score_samples(samples)
        return {"answer_logprob": token_means(scores.logprob)}

    def _answer_sample(self, step: Step) -> Sample:
        """The answer as the response to the step's prompt, within the length limit of samples.

        The end of a long answer and the start of a long prompt are left out.
        """
        # At most half of the room for the answer: it means nothing without its prompt.
        tokens = self._tokenizer.encode(step.episode.task.answer)
        answer = np.asarray(tokens[: self._limit // 2], np.int32)
        prompt = _join_tokens(step.turn.prompt_tokens, self._prefix)
        prompt = prompt[-(self._limit - len(answer)) :]  # the current observation is at its end
        # It is scored and not trained, so no behaviour log-probabilities are needed.
        return Sample(prompt, answer, np.zeros(len(answer), np.float32))


def _join_tokens(prompt: np.ndarray, prefix: Sequence[int]) -> np.ndarray:
    return np.concatenate([prompt, np.asarray(prefix, np.int32)])
