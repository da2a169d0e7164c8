"""Prompts of card games: the observation, the rules, and a response in JSON."""

from collections.abc import Sequence
from dataclasses import dataclass

from gigpo_jax.env_bridge.prompts import PromptInput


@dataclass(frozen=True)
class Rules:
    """Prompt for language models, without history and step number.

    Attributes:
      text: Game, its rules and rewards.
      actions: Actions to choose from.
      keys: Keys of the response before the action, each with a hint at its content.
    """

    text: str
    actions: Sequence[str]
    keys: Sequence[tuple[str, str]] = (("thoughts", "what you see, and what follows from it"),)

    def __call__(self, inputs: PromptInput, /) -> str:
        """Renders a `prompts.PromptInput`."""
        return "\n".join((self.user(inputs), self.system(inputs)))

    def user(self, inputs: PromptInput, /) -> str:
        """The user message of a conversation: the observation."""
        return inputs.observation

    def system(self, inputs: PromptInput, /) -> str:
        """The system message of a conversation: rules, actions and format."""
        del inputs
        choice = ", ".join(f'"{action}"' for action in self.actions)
        fields = [f'"{key}": "<{hint}>"' for key, hint in self.keys]
        fields.append('"action": "<your action>"')
        return "\n".join(
            (
                self.text,
                f"Your action is one of {choice}.",
                f"Reply with {{{', '.join(fields)}}}",
            )
        )
