"""Settings of episodes: prompts, limits, penalties and sampling."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from gigpo_jax.core.errors import InputError
from gigpo_jax.engines.base import SamplingParams
from gigpo_jax.env_bridge.actions import Response
from gigpo_jax.env_bridge.prompt_building import build_prompt
from gigpo_jax.env_bridge.prompts import History, Prompt, PromptTemplate
from gigpo_jax.env_bridge.types import Observation, StepResult
from gigpo_jax.rollout.episode_parts import EpisodePart


@dataclass(frozen=True)
class EpisodeSettings:
    """How episodes are played.

    Attributes:
      template: Wording of prompts; a `Conversation` makes one chat of an episode.
      parse: Function that turns a response's text into action and validity.
      max_steps: Largest number of actions in an episode.
      prompt_tokens: Largest number of tokens of a prompt, chat template included.
      history: Number of past steps in a prompt.
      show_admissible: Whether a prompt lists the admissible actions.
      invalid_penalty: Penalty of an invalid response, >= 0, in units of reward.
      regret_reward: Reward that a step loses for each action that it wasted, >= 0.
      overlong_buffer: Number of tokens below the length limit of responses over which a penalty
        rises; 0: no penalty.
      overlong_penalty: Penalty at the length limit, >= 0, in units of reward.
      sampling: Temperature, lengths and stops; the key is replaced for every request.
      seed: Seed of the run; part of every request's key.
      max_aborted_fraction: Fraction of aborted episodes above which a rollout fails.
      trials: Largest number of trials of an episode; one that wins or is aborted is the last.
      template_images: Images that texts of the template refer to (`image_marks.number_images`).
      plan: Kind of the policy's plans, one of `plans.PLANS`.
      parts: Functions that make the parts of an episode, or None where it does not need one.
    """

    template: PromptTemplate
    parse: Callable[[str], Response]
    max_steps: int
    prompt_tokens: int
    history: int = 2
    show_admissible: bool = True
    invalid_penalty: float = 0.1
    regret_reward: float = 0.0
    overlong_buffer: int = 0
    overlong_penalty: float = 1.0  # as in DAPO: a truncated response loses the reward of a win
    sampling: SamplingParams = field(default_factory=SamplingParams)
    seed: int = 0
    # More are no accidents of single workers, and the mean over the rest would be biased.
    max_aborted_fraction: float = 0.5
    trials: int = 1
    template_images: tuple[np.ndarray, ...] = ()
    plan: str = "none"
    parts: Sequence[Callable[[], EpisodePart | None]] = ()

    def make_parts(self) -> tuple[EpisodePart, ...]:
        """Makes the parts of an episode, in the order in which it calls them."""
        return tuple(part for make in self.parts if (part := make()) is not None)

    def penalty(self, valid: bool, tokens: int) -> float:
        """Returns the penalty of a response, for invalid format and for length.

        Source of the penalty for length: DAPO, arXiv 2503.14476, eq. 13.
        """
        penalty = 0.0 if valid else self.invalid_penalty
        # The penalty rises over the last tokens before the limit: L - C to L in eq. 13.
        excess = tokens - (self.sampling.max_tokens - self.overlong_buffer)
        if self.overlong_buffer and excess > 0:
            penalty += self.overlong_penalty * excess / self.overlong_buffer
        return penalty

    def reward(self, result: StepResult) -> float:
        """Returns the reward of a step, less `regret_reward` for each of its wasted actions.

        Raises:
          InputError: the environment does not tell the regret that the settings need.
        """
        # The common case needs no regret: the number stays the environment's.
        if not self.regret_reward:
            return result.reward
        if "regret" not in result.info:
            raise InputError(
                "the environment does not tell the regret of this task's actions",
                key="config.env.regret_reward",
                value=self.regret_reward,
                fix="use 0, or tasks whose regret is known (docs/credit.md)",
            )
        return result.reward - self.regret_reward * result.info["regret"]

    def prompt(
        self, observation: Observation, history: History, encode: Callable[..., Sequence[int]]
    ) -> Prompt:
        """Returns the prompt of a step, a summary or a plan before the first action.

        `encode` is as for `build_prompt`.

        Raises:
          InputError: it has images, and is too long without its history; nothing else is cut out
            of such a prompt.
          NoSummaryRoom: it has too little room for summaries.
        """
        opening = None
        # The first prompt of an episode: everything after it shows the plan.
        if self.plan != "none" and history.plan is None:
            from gigpo_jax.env_bridge.plans import PLANS

            opening = PLANS[self.plan].opening
        prompt = build_prompt(
            opening(self.template) if opening else self.template,
            observation,
            history,
            encode=encode,
            limit=self.prompt_tokens,
            show_admissible=self.show_admissible,
            template_images=self.template_images,
        )
        if prompt.images:
            from gigpo_jax.rollout.pictures import check_length

            check_length(prompt.tokens, prompt.images, self.prompt_tokens)
        return replace(prompt, asks_summary=True) if opening else prompt
