"""Prompts of card games: the observation, the rules, and a response in JSON."""

from collections.abc import Sequence
from dataclasses import dataclass

from gigpo_jax.env_bridge.prompts import PromptInput


@dataclass(frozen=True)
class Rules:
    """The prompt for language models. It shows neither history nor number of steps.

    Attributes:
      text: the game, its rules and rewards.
      actions: what can be chosen.
      keys: of the response, with what belongs there, before the action.
    """

    text: str
    actions: Sequence[str]
    keys: Sequence[tuple[str, str]] = (("thoughts", "what you see, and what follows from it"),)

    def __call__(self, inputs: PromptInput, /) -> str:
        """Renders a `prompts.PromptInput`."""
        choice = ", ".join(f'"{action}"' for action in self.actions)
        keys = ", ".join((*(f'"{key}": "<{what}>"' for key, what in self.keys), '"action": "<your action>"'))
        return "\n".join((inputs.observation, self.text, f"Your action is one of {choice}.", f"Reply with {{{keys}}}"))
