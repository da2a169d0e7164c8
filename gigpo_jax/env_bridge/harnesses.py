"""The Protocol of agent programs that play whole episodes, and the address of the policy."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from gigpo_jax.env_bridge.types import Task


@dataclass(frozen=True)
class SessionAddress:
    """The policy's address for one episode, for clients of OpenAI's and Anthropic's interfaces.

    Attributes:
      base_url: URL such as http://127.0.0.1:8000/sessions/ID/v1; every request to it belongs to the
        episode.
      api_key: Bearer token.
      model: Name of the policy.
    """

    base_url: str
    api_key: str
    model: str

    def environ(self) -> dict[str, str]:
        """Returns the variables that clients read their address and key from."""
        return {
            "OPENAI_BASE_URL": self.base_url,
            "OPENAI_API_KEY": self.api_key,
            # Anthropic's clients add /v1 themselves.
            "ANTHROPIC_BASE_URL": self.base_url.removesuffix("/v1"),
            "ANTHROPIC_API_KEY": self.api_key,
        }


class Harness(Protocol):
    """An agent program that plays whole episodes against the policy's endpoint (docs/serve.md).

    One object plays one episode at a time.
    """

    def tasks(self, split: str) -> Sequence[Task]:
        """The tasks of a split, always in the same order."""

    def play(self, task: Task, session: SessionAddress) -> object:
        """Plays one episode and posts its reward to BASE_URL/reward.

        It may be `async def`; otherwise it runs in a thread. The return value is ignored. An
        exception costs the episode.
        """

    def close(self) -> None:
        """Frees its resources."""
