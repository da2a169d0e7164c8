"""The Protocol that the author of an expert implements."""

from typing import Protocol

from gigpo_jax.env_bridge.types import Observation, Task


class Expert(Protocol):
    """Demonstrator of one episode from an agent's observations.

    There is a new object for each episode. It may have `thought: str`, the reason for its last
    action in words; examples in prompts of agents show it. It may have `begin(task)`, called before
    its first observation, if it knows more of the task than the agent sees. It may have
    `summarise() -> str`, called before each `act`: the summary of what it has seen so far, which
    demonstrations with `env.context=summary` show where a conversation is full. For demonstrations
    with `env.plan` it has a text of the plan's name, its plan at its last action (docs/plans.md).
    """

    def act(self, observation: Observation) -> str:
        """Returns the next action; it is called with every observation of the episode in order."""


def begin_episode(expert: Expert, task: Task) -> None:
    """Gives an expert with `begin` the task of its episode."""
    begin = getattr(expert, "begin", None)
    if begin is not None:
        begin(task)
