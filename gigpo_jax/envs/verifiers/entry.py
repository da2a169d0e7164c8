"""The entries of environments of verifiers, made from the names of their modules."""

from gigpo_jax.core.settings import one_of
from gigpo_jax.env_bridge.actions import Response
from gigpo_jax.env_bridge.prompts import Compact, PromptInput
from gigpo_jax.envs.entry_types import Environment, Option


def verifiers_entry(source: str) -> Environment:
    """Makes the entry of an environment of verifiers.

    Args:
      source: Module with the function `load_environment`.
    """
    return Environment(
        build=f"gigpo_jax.envs.verifiers.env:VerifiersEnv:{source}",
        styles={"full": show_conversation, "compact": Compact()},
        parse=parse_message,
        expert=None,
        max_steps=10,
        history=10,
        invalid_penalty=0.0,
        options={
            "kwargs": Option(dict, {}, "keyword arguments of load_environment"),
            "won_from": Option(
                float, None, "reward from which an episode is won; default: pass_threshold"
            ),
            "result_characters": Option(int, 4000, "largest number of characters of a reply"),
        },
        # A state is all messages so far.
        anchor=one_of("text", "state"),
        run_arguments=("anchor",),
        action_tags=(),
    )


def parse_message(response: str) -> Response:
    """The whole response is the message; rubrics judge its format."""
    return Response(response, True)


def show_conversation(inputs: PromptInput, /) -> str:
    """Makes the prompt for language models: the conversation without further instructions."""
    lines = [inputs.task]
    if inputs.steps > len(inputs.history):
        lines.append("[earlier messages are left out]")
    for number, event in enumerate(inputs.history, inputs.steps - len(inputs.history)):
        # The first observation only says that there was no message yet.
        if number:
            lines.append("[reply] " + event.observation)
        lines.append("[you] " + event.action)
    if inputs.steps:
        lines.append("[reply] " + inputs.observation)
    return "\n".join(lines)
