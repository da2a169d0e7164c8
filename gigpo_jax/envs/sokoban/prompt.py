"""Prompts of Sokoban, and how responses are read."""

from gigpo_jax.env_bridge.actions import Response
from gigpo_jax.env_bridge.conversations import Conversation
from gigpo_jax.env_bridge.instructions import Instruct
from gigpo_jax.env_bridge.prompts import PromptInput
from gigpo_jax.env_bridge.types import IMAGE
from gigpo_jax.envs.sokoban.engine.room import ACTIONS

_ROLE = "You play Sokoban. Push every box onto a target with as few moves as you can."
_RULES = (
    "Moves: up, down, left, right. You move by one cell. If a box is in that cell, you push it "
    "one cell further. You cannot pull a box, push two boxes at once, or walk through walls. A "
    "box in a corner that is no target can never leave it."
)
_LOOKS = (
    "In the picture, walls are red bricks and the floor is dark. You are the green figure. A box "
    "is a yellow crate with a cross, a target is a red ring; a crate with a red frame stands on "
    "a target."
)
_LEGEND = (
    "Each cell is a letter: # wall, _ floor, O target, X box, √ box on a target, P you, "
    "S you on a target."
)
_FORMAT = (
    "First reason about where the box has to go and what your next move changes, between <think> "
    "and </think>. Then give one move (up, down, left or right), and nothing else, between "
    "<action> and </action>."
)
ABOUT = Instruct(f"{_ROLE} {_RULES} The room is a picture or text. {_LOOKS} In text: {_LEGEND}")
# In the order in which a response is searched for them.
_SEARCHED_ACTIONS = (*ACTIONS[1:], ACTIONS[0])


def full(inputs: PromptInput, /) -> str:
    """The prompt for language models; with a picture, without history and number of steps."""
    # As published: one picture, no history and no step number.
    if inputs.observation.startswith(IMAGE):
        return "\n".join((_ROLE, _RULES, _LOOKS, f"The room now: {inputs.observation}", _FORMAT))
    lines = [_ROLE, _RULES, _LEGEND]
    if inputs.steps:
        lines.append(f"Steps taken so far: {inputs.steps}.")
    first_number = inputs.steps - len(inputs.history) + 1
    for number, event in enumerate(inputs.history, first_number):
        lines.append(f"[step {number}] The room was:\n{event.observation}\nYou did: {event.action}")
    return "\n".join((*lines, f"The room now:\n{inputs.observation}", _FORMAT))


def _write_system_message(inputs: PromptInput, /) -> str:
    """The system message of a conversation: role, rules and format."""
    cells = _LOOKS if inputs.observation.startswith(IMAGE) else _LEGEND
    return "\n".join((_ROLE, _RULES, cells, _FORMAT))


def _write_user_message(inputs: PromptInput, /) -> str:
    """The user message of a conversation: the room."""
    space = " " if inputs.observation.startswith(IMAGE) else "\n"
    return f"The room now:{space}{inputs.observation}"


CHAT = Conversation(_write_user_message, _write_system_message)


def parse_move(response: str) -> Response:
    """Reads `<think> .. </think><action> .. </action>`; never raises.

    The action is the first of up, down, left, right, still that is contained in the text between
    the first `<action>` and the first `</action>`, in lower case. Without one it is "", which does
    nothing. Valid means an action and both think tags. Source: the projection of the published
    GiGPO experiments.
    """
    text = response.lower()
    start = text.find("<action>")
    end = text.find("</action>")
    if not 0 <= start < end:
        return Response("", False)
    tagged_text = text[start + len("<action>") : end]
    # As published: contained, not equal, so "go up" plays as well.
    action = next((name for name in _SEARCHED_ACTIONS if name in tagged_text), "")
    has_thought = "<think>" in response and "</think>" in response
    return Response(action, action != "" and has_thought)
