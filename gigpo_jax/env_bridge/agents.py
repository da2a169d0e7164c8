"""Agents: ways to ask a language model for actions in an evaluation (docs/agents.md)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from gigpo_jax.core.method_table import METHOD_AGENTS
from gigpo_jax.core.references import ReferenceTable, find_entry
from gigpo_jax.env_bridge.actions import Response
from gigpo_jax.env_bridge.instructions import Instruct
from gigpo_jax.env_bridge.prompts import PromptInput, PromptTemplate

# Task type -> won episodes, up to the last action; "" stands for all types without a key.
Examples = Mapping[str, Sequence[PromptInput]]


@dataclass(frozen=True)
class Agent:
    """A way to ask for actions; fields that are None keep the environment's own way.

    Attributes:
      template: Function from the environment's instructions and examples to a template of prompts.
      read: Function from a response to its thought and the text of its action, or None if the
        response does not keep to the format.
      stop: Strings that end a response.
      reflection: Function from the environment's instructions to the template of the prompt for a
        reflection after a failed trial; None: no reflections.
      trials: Largest number of trials of a task, unless `eval.trials` is set.
    """

    template: Callable[[Instruct, Examples], PromptTemplate] | None = None
    read: Callable[[str], tuple[str, str] | None] | None = None
    stop: tuple[str, ...] = ()
    reflection: Callable[[Instruct], PromptTemplate] | None = None
    trials: int = 1

    def make_parser(
        self, parse: Callable[[str], Response], write: Callable[[str], str]
    ) -> Callable[[str], Response]:
        """Makes the parser of responses, whose action `parse` reads.

        A response that does not keep to the agent's format is invalid.

        Args:
          parse: Parser of the environment's own format.
          write: Function from the text of an action to a response in that format.
        """
        # A local name: mypy does not narrow the type of an attribute inside `parse_response`.
        read = self.read
        if read is None:
            return parse

        def parse_response(response: str) -> Response:
            step = read(response)
            if step is None:
                return replace(parse(response), valid=False)
            thought, action = step
            # In the environment's own format, so that one parser decides what an action is.
            return replace(parse(write(action)), thought=thought)

        return parse_response


PLAIN = Agent()
AGENTS: ReferenceTable[Agent] = ReferenceTable(
    {
        "plain": "gigpo_jax.env_bridge.agents:PLAIN",
        "react": "gigpo_jax.env_bridge.react:REACT",
    }
    | METHOD_AGENTS
)


def find_agent(name: str) -> Agent:
    """Finds an agent by its name in `AGENTS`, or by "module:NAME"; raises InputError."""
    return find_entry(name, AGENTS, Agent, key="config.agent")
