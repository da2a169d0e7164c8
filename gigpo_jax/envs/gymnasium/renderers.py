"""Gymnasium environments in words: ready renderers, and the user's renderers."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gigpo_jax.core.errors import InputError
from gigpo_jax.core.references import load_reference
from gigpo_jax.envs.frozenlake import prompt as frozenlake
from gigpo_jax.envs.frozenlake.lake import ACTIONS as LAKE_ACTIONS


@dataclass(frozen=True)
class Renderer:
    """The words for an environment; functions get the unwrapped environment and the observation.

    Attributes:
      text: Function that returns the observation in words.
      actions: Names of discrete actions, in the order of numbers; "": nobody may choose it.
      task: Function from the environment to the task in words, called after each reset.
      state: Function that returns the whole state as text: equal states have equal futures, but
        for chance and the time limit. None: there is no anchor `state`.
      won_above: Reward above which an episode that terminates is won.
      name: Name for messages.
      mutes_reset: Whether what `reset` prints is dropped.
    """

    text: Callable[[Any, Any], str]
    actions: tuple[str, ...] = ()
    task: Callable[[Any], str] = lambda env: "get as much reward as you can"
    state: Callable[[Any, Any], str] | None = None
    won_above: float = 0.0
    name: str = "the environment"
    mutes_reset: bool = False


def find_renderer(env_id: str, reference: str) -> Renderer:
    """Finds the renderer of an environment.

    Args:
      env_id: Gymnasium's ID.
      reference: Reference "module:NAME" of a `Renderer`, or of a function that returns the
        observation in words; "": the ready renderer, or the observation itself.

    Raises:
      InputError: There is no such renderer.
    """
    ready_renderer = _find_ready_renderer(env_id)
    if not reference:
        return ready_renderer
    key = "renderer"
    if ":" not in reference:
        raise InputError("no reference", key=key, value=repr(reference), fix="name it module:NAME")
    renderer = load_reference(reference, key=key)
    if isinstance(renderer, Renderer):
        return renderer
    if not callable(renderer):
        raise InputError(
            f"a {type(renderer).__name__}, neither a function nor a Renderer",
            key=key,
            value=repr(reference),
        )
    return replace(ready_renderer, text=renderer, name=reference)


def _find_ready_renderer(env_id: str) -> Renderer:
    name = env_id.rpartition("/")[2]
    for prefix, renderer in RENDERERS.items():
        if name.startswith(prefix):
            return renderer
    return Renderer(lambda env, observation: observation)


def _say_steps(count: int, direction: str) -> str:
    return f"{count} step{'s' if count > 1 else ''} {direction}"


# FrozenLake


def _show_lake(env: Any, observation: Any) -> str:
    letters = {b"S": frozenlake.ICE, b"F": frozenlake.ICE}
    letters |= {b"H": frozenlake.HOLE, b"G": frozenlake.GOAL}
    agents = {b"H": frozenlake.AGENT_IN_HOLE, b"G": frozenlake.AGENT_AT_GOAL}
    rows = [[letters[cell] for cell in row] for row in env.desc]
    row, column = divmod(int(observation), env.ncol)
    rows[row][column] = agents.get(bytes(env.desc[row][column]), frozenlake.AGENT)
    return "\n".join(" ".join(row) for row in rows)


# Taxi

_PLACES = ("red", "green", "yellow", "blue")


def _show_taxi(env: Any, observation: Any) -> str:
    row, column, passenger, destination = env.decode(int(observation))
    lines = [bytes(b"".join(line)).decode() for line in env.desc.tolist()]
    line = lines[row + 1]
    lines[row + 1] = f"{line[: 2 * column + 1]}T{line[2 * column + 2 :]}"
    place = "in the taxi" if passenger == len(_PLACES) else f"at {_PLACES[passenger]}"
    lines.append(f"The passenger is {place} and wants to go to {_PLACES[destination]}.")
    return "\n".join(lines)


_TAXI_TASK = (
    "Fetch the passenger with the taxi and bring them to the place where they want to go. T is the "
    "taxi. R, G, Y and B are the places red, green, yellow and blue. The taxi cannot pass | and "
    "the border."
)


# CliffWalking


def _show_cliff(env: Any, observation: Any) -> str:
    rows, columns = env.shape
    letters = [["C" if cell else "o" for cell in line] for line in env._cliff]
    letters[rows - 1][columns - 1] = "G"
    row, column = divmod(int(observation), columns)
    letters[row][column] = "P"
    return "\n".join(" ".join(line) for line in letters)


_CLIFF_TASK = (
    "Walk to the goal in few steps and do not step on the cliff, from which you fall back to the "
    "start. Cells: P you, o ground, C cliff, G goal."
)


# Blackjack


def _show_hand(env: Any, observation: Any) -> str:
    total, dealer, has_ace = (int(number) for number in observation)
    ace = "with an ace that counts 11" if has_ace else "without an ace that counts 11"
    card = "an ace" if dealer == 1 else f"a card of {dealer}"
    return f"You have {total}, {ace}. The dealer shows {card}."


def _tell_cards(env: Any, observation: Any) -> str:
    return f"{env.player} {env.dealer} {observation}"


_BLACKJACK_TASK = (
    "Win a game of blackjack: get closer to 21 than the dealer and not above it. hit takes a card, "
    "stick ends your turn."
)


# MiniGrid and BabyAI


def _show_view(env: Any, observation: Any) -> str:
    """Tells load, walls and objects in view, in the words of BabyAI-Text (arXiv 2302.02662)."""
    image = observation["image"]
    sentences = []
    if env.carrying is not None:
        sentences.append(f"You carry a {env.carrying.color} {env.carrying.type}")
    sentences += _say_walls(image)
    sentences += _say_objects(image)
    return "\n".join(sentences) or "You see nothing"


def _say_walls(image: np.ndarray) -> list[str]:
    """Tells the walls ahead, left and right, if no object stands before them.

    Args:
      image: View of the agent, uint8 [W, H, 3]: number of the object, its color and its state.
    """
    from minigrid.core.constants import OBJECT_TO_IDX

    column, row = _find_agent(image)
    lines = {
        "forward": image[column, :row, 0][::-1],
        "left": image[:column, row, 0][::-1],
        "right": image[column + 1 :, row, 0],
    }
    nothing = [OBJECT_TO_IDX[name] for name in _NOTHING]
    sentences = []
    for direction, cells in lines.items():
        (things,) = np.nonzero(~np.isin(cells, nothing))
        if len(things) and cells[things[0]] == OBJECT_TO_IDX["wall"]:
            sentences.append(f"You see a wall {_say_steps(int(things[0]) + 1, direction)}")
    return sentences


def _say_objects(image: np.ndarray) -> list[str]:
    """Tells the objects by columns from the left, the farthest of a column first."""
    from minigrid.core import constants

    states = {number: name for name, number in constants.STATE_TO_IDX.items()}
    kinds = {number: name for name, number in constants.OBJECT_TO_IDX.items()}
    agent = _find_agent(image)
    sentences = []
    for column, row in np.ndindex(*image.shape[:2]):
        kind, color, state = (int(number) for number in image[column, row])
        name = kinds[kind]
        # The agent's own cell shows what it carries.
        if name in (*_NOTHING, "wall") or (column, row) == agent:
            continue
        words = [] if name in ("goal", "lava") else [constants.IDX_TO_COLOR[color]]
        if name == "door":
            words.insert(0, states[state])
        article = "an" if words[:1] == ["open"] else "a"
        place = _say_place(agent[1] - row, column - agent[0])
        sentences.append(f"You see {article} {' '.join([*words, name])} {place}")
    return sentences


_NOTHING = ("unseen", "empty", "floor")


def _find_agent(image: np.ndarray) -> tuple[int, int]:
    """Returns column and row of the agent, who looks up from the middle of the last row."""
    return image.shape[0] // 2, image.shape[1] - 1


def _say_place(forward: int, right: int) -> str:
    places = []
    if right:
        places.append(_say_steps(abs(right), "right" if right > 0 else "left"))
    if forward:
        places.append(_say_steps(forward, "forward"))
    return " and ".join(places)


def _tell_grid(env: Any, observation: Any) -> str:
    """Hashes all that the future depends on.

    This includes cells, contents of boxes, position, direction, load, and progress of the mission.
    """
    boxes = [cell.contains for cell in env.grid.grid if getattr(cell, "contains", None)]
    objects = [(thing.type, thing.color) for thing in [*boxes, env.carrying] if thing is not None]
    position = tuple(int(number) for number in env.agent_pos)
    progress = _list_progress(env.instrs) if hasattr(env, "instrs") else []
    cells = env.grid.encode().tolist()
    state = (cells, position, int(env.agent_dir), objects, env.mission, progress)
    return hashlib.sha256(repr(state).encode()).hexdigest()


def _list_progress(instruction: Any) -> list[Any]:
    """What a mission of BabyAI remembers beside the grid.

    It remembers which parts are done, what was carried at the last look, and where the objects are
    that it means: two objects may look alike.
    """
    progress: list[Any] = []
    for name in ("instr_a", "instr_b"):
        if hasattr(instruction, name):
            progress += _list_progress(getattr(instruction, name))
    # Before the first look it is False, later "continue": both mean the same.
    progress += [getattr(instruction, name, "") == "success" for name in ("a_done", "b_done")]
    load = getattr(instruction, "preCarrying", None)
    progress.append(None if load is None else (load.type, load.color))
    for name in ("desc", "desc_move", "desc_fixed"):
        description = getattr(instruction, name, None)
        for thing in description.obj_set if description is not None else ():
            # "A grey object" means the walls too, which have no place of their own.
            if thing.cur_pos is not None:
                progress.append(tuple(int(number) for number in thing.cur_pos))
    return progress


_MINIGRID = Renderer(
    _show_view,
    ("turn left", "turn right", "go forward", "pick up", "drop", "toggle", "done"),
    lambda env: str(env.mission),
    _tell_grid,
    name="the renderer of MiniGrid",
    mutes_reset=True,  # BabyAI prints a line for every draft of a level that it rejects
)

# In BabyAI the last action, done, changes nothing.
BABYAI = replace(_MINIGRID, actions=(*_MINIGRID.actions[:-1], ""))

# By the beginning of IDs, without their namespace.
RENDERERS: Mapping[str, Renderer] = {
    "FrozenLake": Renderer(
        _show_lake,
        LAKE_ACTIONS,
        lambda env: frozenlake.INTRO + frozenlake.SLIPPERY,
        _show_lake,
        name="the renderer of FrozenLake",
    ),
    "Taxi": Renderer(
        _show_taxi,
        ("south", "north", "east", "west", "pick up", "drop off"),
        lambda env: _TAXI_TASK,
        lambda env, observation: f"{observation} {env.fickle_step}",
        name="the renderer of Taxi",
    ),
    "CliffWalking": Renderer(
        _show_cliff,
        ("up", "right", "down", "left"),
        lambda env: _CLIFF_TASK,
        _show_cliff,
        won_above=-2.0,  # every step costs 1, also the one to the goal
        name="the renderer of CliffWalking",
    ),
    "Blackjack": Renderer(
        _show_hand,
        ("stick", "hit"),
        lambda env: _BLACKJACK_TASK,
        _tell_cards,
        name="the renderer of Blackjack",
    ),
    "MiniGrid": _MINIGRID,
    "BabyAI": BABYAI,
}
