"""Scores of responses behind prompts with a text that the policy did not read: hindsight."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Self

import jax
import numpy as np
from ml_collections import ConfigDict

from gigpo_jax.config.requirements import require
from gigpo_jax.core.errors import InputError
from gigpo_jax.env_bridge.conversations import Conversation
from gigpo_jax.env_bridge.prompt_building import build_prompt
from gigpo_jax.env_bridge.prompts import History, PromptInput
from gigpo_jax.env_bridge.types import Observation
from gigpo_jax.envs.registry import find_style
from gigpo_jax.learner.samples import Sample
from gigpo_jax.learner.scored_steps import ScoredSteps
from gigpo_jax.learner.signals.base import Signal
from gigpo_jax.models.text.tokenizer import Tokenizer
from gigpo_jax.policy import Policy
from gigpo_jax.trajectory import Step, Turn

CLOSING = "Knowing this, solve the task."


class HindsightSignal(Signal):
    """Base of signals with one forward pass over the samples, behind longer prompts."""

    scores_steps = True

    def __init__(self, config: ConfigDict, policy: Policy) -> None:
        """Takes the tokenizer and the largest number of tokens of a sample.

        Raises:
          InputError: the policy reads images.
        """
        if policy.config.vision is not None:
            raise InputError(
                "it adds text alone to prompts",
                key="config.rl.algorithm",
                value=repr(config.rl.algorithm),
                fix="choose another one for a model that reads images",
            )
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
    def is_gradable(cls, config: ConfigDict, policy: Policy, steps: Sequence[Step]) -> bool:
        """Whether prompts are text, one for each step."""
        del steps
        template = find_style(config.env.name, config.env.prompt)
        return policy.config.vision is None and not isinstance(template, Conversation)

    @classmethod
    def start(cls, config: ConfigDict, policy: Policy, mesh: jax.sharding.Mesh) -> Self:
        """The signal at the start of a run."""
        del mesh
        return cls(config, policy)

    def hindsight_samples(self, scored: ScoredSteps, contexts: Sequence[str]) -> list[Sample]:
        """The samples with a context in each prompt; where it is "", the prompt stays."""
        samples = []
        for sample, step, context in zip(scored.samples, scored.steps, contexts, strict=True):
            # The experts of the rollout belong to another prompt.
            sample = replace(sample, routes=None)
            if context:
                # The response is scored as it was sampled; only the prompt is cut.
                room = self._limit - len(sample.response_tokens)
                prompt = hindsight_prompt(self._tokenizer, step.turn, context, room)
                sample = replace(sample, prompt_tokens=prompt)
            samples.append(sample)
        return samples


def hindsight_prompt(tokenizer: Tokenizer, turn: Turn, context: str, limit: int) -> np.ndarray:
    """Adds a context and a closing sentence to a prompt, and shortens the context where it must.

    The middle of the context is cut first.

    Returns:
      [P] i32 with P <= limit.
    """

    # The context stands in the place of an observation, because a prompt that is too long loses the
    # middle of its observation first. The step's own prompt stays whole as long as it can.
    def template(inputs: PromptInput, /) -> str:
        return "\n\n".join((turn.prompt, inputs.observation, CLOSING))

    observation = Observation(context, "", None, turn.task)
    prompt = build_prompt(
        template, observation, History(0), encode=tokenizer.encode_chat, limit=limit
    )
    return np.asarray(prompt.tokens, np.int32)
