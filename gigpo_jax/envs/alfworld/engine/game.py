"""The native engine: ALFRED's rules in Python, with text that is identical to the official engine's.

It keeps the quirks of the official engine:

- Only a held object can be examined: the rule for objects in receptacles is misspelt in the domain.
- A lamp is always turned "on": the fact that the grammar tests is never deleted.
- "Next to it, you see" lists objects that were moved from one receptacle at this location to another one there.
- Where there is no receptacle, `look` sees nothing; only the first text lists the room.
- The game continues after the goal is reached; `done` is false again if the goal is undone.
"""

import os
from bisect import insort
from collections.abc import Callable, Iterable
from typing import NamedTuple

from gigpo_jax.envs.alfworld.engine import facts as f
from gigpo_jax.envs.alfworld.engine.game_file import GameFile, load_game
from gigpo_jax.envs.alfworld.engine.remaining import remaining

NOTHING_HAPPENS = "Nothing happens."
WELCOME = "-= Welcome to TextWorld, ALFRED! =-"
# The text of `help` in the official engine, its uneven column included.
_HELP_ROWS = (
    ("look:", "look around your current location"),
    ("inventory:", "check your current inventory"),
    ("go to (receptacle):", "move to a receptacle"),
    ("open (receptacle):", "open a receptacle"),
    ("close (receptacle):", "close a receptacle"),
    ("take (object) from (receptacle):", "take an object from a receptacle"),
    ("move (object) to (receptacle): ", "place an object in or on a receptacle"),
    ("examine (something):", "examine a receptacle or an object"),
    ("use (object):", "use an object"),
    ("heat (object) with (receptacle):", "heat an object using a receptacle"),
    ("clean (object) with (receptacle):", "clean an object using a receptacle"),
    ("cool (object) with (receptacle):", "cool an object using a receptacle"),
    ("slice (object) with (object):", "slice an object using a sharp object"),
)
HELP = "Available commands:\n" + "".join(
    f"  {usage} {text}\n" if usage.endswith(" ") else f"  {usage:<33} {text}\n" for usage, text in _HELP_ROWS
)

_BARE = {"look": (f.LOOK, 0, 0), "inventory": (f.INVENTORY, 0, 0), "help": (f.ASK, 0, 0)}


class Step(NamedTuple):
    """The result of a reset or a step."""

    feedback: str  # the text of the game
    admissible: tuple[str, ...]  # the admissible commands, sorted
    reward: float  # 1.0 when the goal holds after a step, else 0.0
    done: bool  # whether the goal holds after a step
    won: bool  # whether the goal holds


class Game:
    """Plays one ALFWorld game: the path of a `game.tw-pddl`, of its folder, or a `GameFile`, which games may share.

    Raises:
      InputError: this engine cannot play the file.
    """

    __slots__ = ("_contents", "_held", "_place", "_state", "_taken", "_won", "admissible", "file")
    admissible: tuple[str, ...]  # sorted
    _won: bool

    def __init__(self, game: str | os.PathLike[str] | GameFile) -> None:
        self.file = game if isinstance(game, GameFile) else load_game(game)
        self._start()

    def remaining(self) -> int | None:
        """The fewest commands that reach the goal from here; None if none do."""
        return remaining(self.file, self._state, self._contents, self._held, self._place)

    def reset(self) -> Step:
        """Restarts the game. The first text has the room and the task."""
        self._start()
        file = self.file
        if self._place in file.beside:
            seen = self._look()
        else:
            seen = f"{_MIDDLE}{_listed(file.names[receptacle] for receptacle in sorted(file.location))}."
        feedback = f"{WELCOME}\n\n{seen}\n\nYour task is to: {file.task}."
        return Step(feedback, self.admissible, 0.0, False, self._won)

    def step(self, command: str) -> Step:
        """Carries out a command; one that is not admissible has no effect. White space around it is stripped."""
        command = command.strip()
        won = self._won
        if command not in self.admissible:
            return Step(NOTHING_HAPPENS, self.admissible, float(won), won, won)
        action, first, second = _BARE.get(command) or self.file.commands[command]
        play, changed = _ACTIONS[action]
        feedback = play(self, first, second)
        if action < f.EXAMINE:
            self.admissible = self._commands()
        if not self.file.goal.predicates.isdisjoint(changed):
            self._won = won = self.file.goal.holds(self._state)
        return Step(feedback, self.admissible, float(won), won, won)

    def _start(self) -> None:
        file = self.file
        self._state = set(file.state)
        self._contents = {receptacle: list(objects) for receptacle, objects in file.contents.items()}
        self._held = list(file.held)
        self._place = file.start
        self._taken: set[int] = set()  # facts IN that were deleted: not_inreceptacle of the official engine
        self.admissible = self._commands()
        self._won = file.goal.holds(self._state)

    # Admissible commands

    def _commands(self) -> tuple[str, ...]:
        file, state, held = self.file, self._state, self._held
        text = file.command
        before: list[str] = []  # before "go to ..." in alphabetical order
        after = ["help", "inventory", "look"]
        free = f.code(f.HOLDS_ANY, file.agent) not in state
        for receptacle in file.beside.get(self._place, ()):
            before.append(text(f.EXAMINE, receptacle))
            contents = self._contents.get(receptacle, ())
            if receptacle not in file.openable or f.code(f.OPENED, receptacle) in state:
                if receptacle in file.openable:
                    before.append(text(f.CLOSE, receptacle))
                if free:
                    after += [text(f.TAKE, thing, receptacle) for thing in contents if thing in file.pickupable]
                after += [
                    text(f.MOVE, thing, receptacle) for thing in held if receptacle in file.accepts.get(thing, ())
                ]
            else:
                after.append(text(f.OPEN, receptacle))
            after += [text(f.USE, thing) for thing in contents if thing in file.toggleable]
            if held:
                self._treatments(receptacle, before, after)
        for thing in held:
            before.append(text(f.EXAMINE, thing))
            if thing in file.knives:
                after += [text(f.SLICE, other, thing) for other in file.sliceable if self._is_here(other)]
        return (*sorted(set(before)), *file.ways(self._place), *sorted(set(after)))

    def _treatments(self, receptacle: int, before: list[str], after: list[str]) -> None:
        """Adds the commands that clean, cool or heat held objects."""
        file = self.file
        text = file.command
        if receptacle in file.washers:
            before += [text(f.CLEAN, thing, receptacle) for thing in self._held if thing in file.cleanable]
        if receptacle in file.coolers:
            before += [text(f.COOL, thing, receptacle) for thing in self._held if thing in file.coolable]
        if receptacle in file.heaters:
            after += [text(f.HEAT, thing, receptacle) for thing in self._held if thing in file.heatable]

    def _is_here(self, thing: int) -> bool:
        return f.code(f.OBJECT_AT, thing, self._place) in self._state

    # Effects and feedback of actions, which are admissible when these are called

    def _go(self, receptacle: int, _: int) -> str:
        agent = self.file.agent
        self._state.discard(f.code(f.AT, agent, self._place))
        self._place = self.file.location[receptacle]
        self._state.add(f.code(f.AT, agent, self._place))
        return f"You arrive at {self.file.names[receptacle]}. {self._receptacle(receptacle)}"

    def _open(self, receptacle: int, _: int) -> str:
        self._state.add(f.code(f.OPENED, receptacle))
        self._state.add(f.code(f.CHECKED, receptacle))
        return f"You open the {self.file.names[receptacle]}. {self._receptacle(receptacle)}"

    def _close(self, receptacle: int, _: int) -> str:
        self._state.discard(f.code(f.OPENED, receptacle))
        return f"You close the {self.file.names[receptacle]}."

    def _take(self, thing: int, receptacle: int) -> str:
        file, state = self.file, self._state
        state -= {f.code(f.IN, thing, receptacle), f.code(f.OBJECT_AT, thing, self._place)}
        state |= {f.code(f.HOLDS, file.agent, thing), f.code(f.HOLDS_ANY, file.agent)}
        self._taken.add(f.code(f.IN, thing, receptacle))
        self._contents[receptacle].remove(thing)
        if thing not in self._held:
            insort(self._held, thing)
        return f"You pick up the {file.names[thing]} from the {file.names[receptacle]}."

    def _move(self, thing: int, receptacle: int) -> str:
        file, state = self.file, self._state
        state -= {f.code(f.HOLDS, file.agent, thing), f.code(f.HOLDS_ANY, file.agent)}
        state |= {f.code(f.IN, thing, receptacle), f.code(f.OBJECT_AT, thing, self._place)}
        self._taken.discard(f.code(f.IN, thing, receptacle))
        self._held.remove(thing)
        contents = self._contents.setdefault(receptacle, [])
        if thing not in contents:  # an object can be in two receptacles, and held as well
            insort(contents, thing)
        return f"You move the {file.names[thing]} to the {file.names[receptacle]}."

    def _clean(self, thing: int, receptacle: int) -> str:
        self._state.add(f.code(f.IS_CLEAN, thing))
        return f"You clean the {self.file.names[thing]} using the {self.file.names[receptacle]}."

    def _heat(self, thing: int, receptacle: int) -> str:
        self._state.add(f.code(f.IS_HOT, thing))
        self._state.discard(f.code(f.IS_COOL, thing))
        return f"You heat the {self.file.names[thing]} using the {self.file.names[receptacle]}."

    def _cool(self, thing: int, receptacle: int) -> str:
        self._state.add(f.code(f.IS_COOL, thing))
        self._state.discard(f.code(f.IS_HOT, thing))
        return f"You cool the {self.file.names[thing]} using the {self.file.names[receptacle]}."

    def _use(self, thing: int, _: int) -> str:
        self._state ^= {f.code(f.ON, thing)}
        self._state.add(f.code(f.TOGGLED, thing))
        return f"You turn on the {self.file.names[thing]}."

    def _slice(self, thing: int, knife: int) -> str:
        self._state.add(f.code(f.SLICED, thing))
        return f"You sliced the {self.file.names[thing]} with the {self.file.names[knife]}."

    def _examine(self, thing: int, _: int) -> str:
        self._state.add(f.code(f.CHECKED, thing))
        return self._receptacle(thing) if thing in self.file.location else self._object(thing)

    def _look_around(self, _: int, __: int) -> str:
        self._state.add(f.code(f.CHECKED, self._place))
        return self._look()

    def _inventory(self, _: int, __: int) -> str:
        agent = self.file.agent
        self._state.add(f.code(f.CHECKED, agent))
        if f.code(f.HOLDS_ANY, agent) not in self._state:
            return "You are not carrying anything."
        return f"You are carrying: {_listed(self.file.names[thing] for thing in self._held)}."

    def _help(self, _: int, __: int) -> str:
        self._state.add(f.code(f.CHECKED, self.file.agent))
        return HELP

    # Descriptions

    def _look(self) -> str:
        file = self.file
        beside = file.beside.get(self._place)
        if beside is None:
            return f"{_MIDDLE}nothing."
        facing = _joined([file.names[receptacle] for receptacle in beside])
        strays = (
            file.names[fact >> 20 & f.MASK]
            for fact in sorted(self._taken)
            if fact & f.MASK in beside and self._is_here(fact >> 20 & f.MASK)
        )
        return f"You are facing the {facing}. Next to it, you see {_listed(strays)}."

    def _receptacle(self, receptacle: int) -> str:
        file = self.file
        name = file.names[receptacle]
        if receptacle not in file.openable:
            start = f"On the {name}, you see"
        elif f.code(f.OPENED, receptacle) in self._state:
            start = f"The {name} is open. In it, you see"
        else:
            return f"The {name} is closed."
        return f"{start} {_listed(file.names[thing] for thing in self._contents.get(receptacle, ()))}."

    def _object(self, thing: int) -> str:
        file, state = self.file, self._state
        name = file.names[thing]
        if thing in file.vessels:
            inside = _listed(file.names[inner] for inner in file.inside.get(thing, ()) if inner != thing)
            return f"This is a normal {name}. In it, you see {inside}."
        clean, sliced = f.code(f.IS_CLEAN, thing) in state, f.code(f.SLICED, thing) in state
        hot, cool = f.code(f.IS_HOT, thing) in state, f.code(f.IS_COOL, thing) in state
        words = ["hot" if hot else "cool"] if hot or cool else []
        words += ["clean"] if clean else []
        if sliced and words:
            return f"This is a {' and '.join(words)} sliced {name}."
        if words:  # "cold" if it is only cool
            return f"This is a {'cold' if words == ['cool'] else ' and '.join(words)} {name}."
        if thing in file.toggleable and f.code(f.TOGGLED, thing) in state:
            return f"This {name} is on."
        if thing in file.sliceable and sliced:
            return f"This is a sliced {name}."
        return f"There's nothing special about {name}."


_MIDDLE = "You are in the middle of a room. Looking quickly around you, you see "


def _listed(names: Iterable[str]) -> str:
    return _joined([f"a {name}" for name in names]) or "nothing"


def _joined(parts: list[str]) -> str:
    if len(parts) < 2:
        return parts[0] if parts else ""
    return f"{', '.join(parts[:-1])}, and {parts[-1]}"


# For each action its method, and the predicates that it can change: a goal without them is not checked again.
_ACTIONS: tuple[tuple[Callable[[Game, int, int], str], tuple[int, ...]], ...] = (
    (Game._go, (f.AT,)),
    (Game._open, (f.OPENED, f.CHECKED)),
    (Game._close, (f.OPENED,)),
    (Game._take, (f.IN, f.OBJECT_AT, f.HOLDS, f.HOLDS_ANY)),
    (Game._move, (f.IN, f.OBJECT_AT, f.HOLDS, f.HOLDS_ANY)),
    (Game._clean, (f.IS_CLEAN,)),
    (Game._heat, (f.IS_HOT, f.IS_COOL)),
    (Game._cool, (f.IS_HOT, f.IS_COOL)),
    (Game._use, (f.ON, f.TOGGLED)),
    (Game._slice, (f.SLICED,)),
    (Game._examine, (f.CHECKED,)),
    (Game._look_around, (f.CHECKED,)),
    (Game._inventory, (f.CHECKED,)),
    (Game._help, (f.CHECKED,)),
)
