"""A copy of the policy that scores responses with the knowledge of what came of them, for SERL (arXiv 2605.19447).

It reads the prompt, what the environment answered to the action, and a closing sentence ("immediate feedback" in the
authors' code). The two sentences are ours: theirs are not known to us. What does not fit is left out of the answer
first, as in any prompt.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from gigpo_jax.batching import Sample
from gigpo_jax.columns.token_logprobs import Score
from gigpo_jax.env_bridge.history import History
from gigpo_jax.env_bridge.prompts import PromptInput, build_prompt
from gigpo_jax.env_bridge.types import Observation
from gigpo_jax.errors import InputError
from gigpo_jax.models.tokenizer import Tokenizer
from gigpo_jax.policy import Policy
from gigpo_jax.trajectory import Step, Turn

SECTION, CLOSING = "After your action you will see: ", "Knowing this, solve the task."
CHECKPOINT = "teacher"  # the name of its part of a checkpoint


class Teacher:
    """The copy and its scores.

    Attributes:
      params: the copy's trained parameters.
    """

    def __init__(self, config: ConfigDict, policy: Policy, score: Score) -> None:
        """Copies what is trained of the policy; the rest is shared.

        Args:
          config: as from `config.resolve`; `rl.settings` has `iterations` and `refresh`.
          policy: the start.
          score: of the policy, as from `make_token_logprobs`.

        Raises:
          InputError: the policy reads images.
        """
        if policy.config.vision is not None:
            raise InputError(
                f"config.rl.algorithm={config.rl.algorithm!r}: its copy of the policy reads text alone; choose "
                "another one for a model that reads images"
            )
        self.params = _copied(policy.trained)
        self._settings, self._sampling = config.rl.settings, config.sampling
        self._frozen, self._tokenizer, self._score = policy.frozen, policy.tokenizer, score

    def scored(self, samples: Sequence[Sample], steps: Sequence[Step], iteration: int, trained: Any) -> list[Sample]:
        """The samples of the steps with `teacher`; from iteration `iterations` on they are not scored.

        All hosts call this together.

        Args:
          samples: of the steps.
          steps: of this host.
          iteration: from 0; the copy is renewed in every `refresh`-th.
          trained: the policy's parameters before the updates.
        """
        if iteration >= self._settings.iterations:
            return list(samples)
        if iteration % self._settings.refresh == 0:
            self.params = None  # never two copies
            self.params = _copied(trained)
        limit = self._sampling.max_prompt_tokens + self._sampling.max_response_tokens
        read = [
            replace(x, prompt_tokens=hindsight_prompt(self._tokenizer, step.turn, limit - len(x.response_tokens)))
            for x, step in zip(samples, steps, strict=True)
        ]
        found = self._score(self.params, self._frozen, read).logprob
        return [replace(x, teacher=logprob) for x, logprob in zip(samples, found, strict=True)]


def hindsight_prompt(tokenizer: Tokenizer, turn: Turn, limit: int) -> np.ndarray:
    """[P] i32, what the copy reads before a response: at most `limit` tokens."""

    def template(inputs: PromptInput, /) -> str:
        return "\n".join((turn.prompt, SECTION + inputs.observation, CLOSING))

    answer = Observation(turn.feedback, "", None, turn.task)
    prompt = build_prompt(template, answer, History(0), encode=tokenizer.encode_chat, limit=limit)
    return np.asarray(prompt.tokens, np.int32)


def _copied(params: Any) -> Any:
    return jax.tree.map(lambda x: x.copy(), params)
