"""Prompts of finished steps with what came afterwards."""

import numpy as np

from gigpo_jax.env_bridge.prompts import History, PromptInput, build_prompt
from gigpo_jax.env_bridge.types import Observation
from gigpo_jax.models.text.tokenizer import Tokenizer
from gigpo_jax.trajectory import Turn

CLOSING = "Knowing this, solve the task."


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
