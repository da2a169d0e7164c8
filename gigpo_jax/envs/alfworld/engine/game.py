"""The native engine: rules of ALFRED, with text identical to the official engine's.

It keeps the quirks of the official engine:

- Only a held object can be examined: the rule for objects in receptacles is misspelt in the domain.
- A lamp is always turned "on": the fact that the grammar tests is never deleted.
- "Next to it, you see" lists objects that were moved from one receptacle at this location to
  another one there.
- Where there is no receptacle, `look` sees nothing; only the first text lists the room.
- The game continues after the goal is reached; `done` is false again if the goal is undone.
"""

import os
from bisect import insort
from collections.abc import Callable, Iterable
from typing import NamedTuple

from gigpo_jax.envs.alfworld.engine import facts as f
from gigpo_jax.envs.alfworld.engine.game_file import GameFile
from gigpo_jax.envs.alfworld.engine.load_game import load_game

NOTHING_HAPPENS = "Nothing happens."
WELCOME = "-= Welcome to TextWorld, ALFRED! =-"
_MIDDLE = "You are in the middle of a room. Looking quickly around you, you see "
# Commands without an argument.
_BARE_COMMANDS = {"look": (f.LOOK, 0, 0), "inventory": (f.INVENTORY, 0, 0), "help": (f.ASK, 0, 0)}


class GameStep(NamedTuple):
    """The result of a reset or a step.

    Attributes:
      feedback: Text of the game.
      admissible: Admissible commands, sorted.
      reward: 1.0 if the goal holds after a step, else 0.0.
      done: Whether the goal holds after a step.
      won: Whether the goal holds.
    """

    feedback: str
    admissible: tuple[str, ...]
    reward: float
    done: bool
    won: bool


class Game:
    """Plays one ALFWorld game.

    Args:
      game: Path of a `game.tw-pddl` or of its folder, or a `GameFile`, which games may share.

    Attributes:
      state: Facts that hold now and can change.
      deleted_contents: Deleted facts IN, the official engine's not_inreceptacle: `look` lists by
        them.
      place: Location of the agent.
      admissible: Admissible commands, sorted.

    Raises:
      InputError: this engine cannot play the file.
    """

    admissible: tuple[str, ...]
    _won: bool

    def __init__(self, game: str | os.PathLike[str] | GameFile) -> None:
        self.file = game if isinstance(game, GameFile) else load_game(game)
        self._restart()

    def remaining(self) -> int | None:
        """Counts the fewest commands to the goal; None if unreachable."""
        # Only metrics and rewards of regret need it.
        from gigpo_jax.envs.alfworld.engine.remaining import count_remaining

        return count_remaining(self.file, self.state, self._contents, self._held, self.place)

    def reset(self) -> GameStep:
        """Restarts the game; its text has room and task."""
        self._restart()
        file = self.file
        # A game may begin in front of a receptacle; generated ones never do.
        if self.place in file.beside:
            surroundings = self._describe_surroundings()
        else:
            surroundings = f"{_MIDDLE}{self._list_things(sorted(file.location))}."
        feedback = f"{WELCOME}\n\n{surroundings}\n\nYour task is to: {file.task}."
        return GameStep(feedback, self.admissible, 0.0, False, self._won)

    def step(self, command: str) -> GameStep:
        """Carries out a command, stripped of white space; an inadmissible one has no effect."""
        command = command.strip()
        # Case and inner blanks count, as in the official engine: "GO TO CABINET 1" does nothing.
        if command not in self.admissible:
            return GameStep(
                NOTHING_HAPPENS, self.admissible, float(self._won), self._won, self._won
            )
        # Every admissible command was made by `make_command`, so the file knows it.
        action, first, second = _BARE_COMMANDS.get(command) or self.file.commands[command]
        feedback = _ACTIONS[action](self, first, second)
        # The other actions (examine, look, inventory, help) change nothing.
        if action < f.EXAMINE:
            self.admissible = self._list_commands()
            self._won = self.file.goal.holds(self.state)
        return GameStep(feedback, self.admissible, float(self._won), self._won, self._won)

    def _restart(self) -> None:
        file = self.file
        self.state = set(file.state)
        self._contents = {
            receptacle: list(objects) for receptacle, objects in file.contents.items()
        }
        # Copies: games share the file, which never changes.
        self._held = list(file.held)
        self.place = file.start
        self.deleted_contents: set[int] = set()
        self.admissible = self._list_commands()
        self._won = file.goal.holds(self.state)

    # Admissible commands

    def _list_commands(self) -> tuple[str, ...]:
        # The "go to" commands of a place are kept sorted in the file, and all other commands come
        # before or after them in the alphabet: only these few are sorted at every step.
        early_commands: list[str] = []  # clean, close, cool, examine
        late_commands = ["help", "inventory", "look"]
        for receptacle in self.file.beside.get(self.place, ()):
            self._add_receptacle_commands(receptacle, early_commands, late_commands)
        self._add_hand_commands(early_commands, late_commands)
        return (
            # Sets: an object in two receptacles at one place gives the same command twice.
            *sorted(set(early_commands)),
            *self.file.list_go_commands(self.place),
            *sorted(set(late_commands)),
        )

    def _add_receptacle_commands(
        self, receptacle: int, early_commands: list[str], late_commands: list[str]
    ) -> None:
        file = self.file
        make_command = file.make_command
        contents = self._contents.get(receptacle, ())
        has_door = receptacle in file.openable
        early_commands.append(make_command(f.EXAMINE, receptacle))
        if has_door and f.encode_fact(f.OPENED, receptacle) not in self.state:
            late_commands.append(make_command(f.OPEN, receptacle))
        else:
            if has_door:
                early_commands.append(make_command(f.CLOSE, receptacle))
            # The rule tests this fact, which any move deletes, even with a second object in the
            # hand.
            if f.encode_fact(f.HOLDS_ANY, file.agent) not in self.state:
                for thing in contents:
                    if thing in file.pickupable:
                        late_commands.append(make_command(f.TAKE, thing, receptacle))
            for thing in self._held:
                if receptacle in file.accepts.get(thing, ()):
                    late_commands.append(make_command(f.MOVE, thing, receptacle))
        for thing in contents:
            if thing in file.toggleable:
                late_commands.append(make_command(f.USE, thing))
        for thing in self._held:
            if receptacle in file.washers and thing in file.cleanable:
                early_commands.append(make_command(f.CLEAN, thing, receptacle))
            if receptacle in file.coolers and thing in file.coolable:
                early_commands.append(make_command(f.COOL, thing, receptacle))
            if receptacle in file.heaters and thing in file.heatable:
                late_commands.append(make_command(f.HEAT, thing, receptacle))

    def _add_hand_commands(self, early_commands: list[str], late_commands: list[str]) -> None:
        file = self.file
        for thing in self._held:
            early_commands.append(file.make_command(f.EXAMINE, thing))
            if thing not in file.knives:
                continue
            for food in file.sliceable:
                if self._is_here(food):
                    late_commands.append(file.make_command(f.SLICE, food, thing))

    def _is_here(self, thing: int) -> bool:
        return f.encode_fact(f.OBJECT_AT, thing, self.place) in self.state

    # Effects and feedback of actions, which are admissible when these are called

    def _go(self, receptacle: int, _: int) -> str:
        agent = self.file.agent
        self.state.discard(f.encode_fact(f.AT, agent, self.place))
        self.place = self.file.location[receptacle]
        self.state.add(f.encode_fact(f.AT, agent, self.place))
        return (
            f"You arrive at {self.file.names[receptacle]}. {self._describe_receptacle(receptacle)}"
        )

    def _open(self, receptacle: int, _: int) -> str:
        self.state.add(f.encode_fact(f.OPENED, receptacle))
        return (
            f"You open the {self.file.names[receptacle]}. {self._describe_receptacle(receptacle)}"
        )

    def _close(self, receptacle: int, _: int) -> str:
        self.state.discard(f.encode_fact(f.OPENED, receptacle))
        return f"You close the {self.file.names[receptacle]}."

    def _take(self, thing: int, receptacle: int) -> str:
        file = self.file
        inside = f.encode_fact(f.IN, thing, receptacle)
        self.state -= {inside, f.encode_fact(f.OBJECT_AT, thing, self.place)}
        self.state |= self._encode_holding(thing)
        # `not_inreceptacle` of the official engine: only a move back into this receptacle deletes
        # it.
        self.deleted_contents.add(inside)
        self._contents[receptacle].remove(thing)
        if thing not in self._held:
            insort(self._held, thing)
        return f"You pick up the {file.names[thing]} from the {file.names[receptacle]}."

    def _move(self, thing: int, receptacle: int) -> str:
        file = self.file
        inside = f.encode_fact(f.IN, thing, receptacle)
        self.state -= self._encode_holding(thing)
        self.state |= {inside, f.encode_fact(f.OBJECT_AT, thing, self.place)}
        self.deleted_contents.discard(inside)
        self._held.remove(thing)
        contents = self._contents.setdefault(receptacle, [])
        # In downloaded games an object can be in two receptacles, and in the hand as well.
        if thing not in contents:
            insort(contents, thing)
        return f"You move the {file.names[thing]} to the {file.names[receptacle]}."

    def _encode_holding(self, thing: int) -> set[int]:
        agent = self.file.agent
        return {f.encode_fact(f.HOLDS, agent, thing), f.encode_fact(f.HOLDS_ANY, agent)}

    def _clean(self, thing: int, receptacle: int) -> str:
        self.state.add(f.encode_fact(f.IS_CLEAN, thing))
        return f"You clean the {self.file.names[thing]} using the {self.file.names[receptacle]}."

    def _heat(self, thing: int, receptacle: int) -> str:
        self.state.add(f.encode_fact(f.IS_HOT, thing))
        self.state.discard(f.encode_fact(f.IS_COOL, thing))
        return f"You heat the {self.file.names[thing]} using the {self.file.names[receptacle]}."

    def _cool(self, thing: int, receptacle: int) -> str:
        self.state.add(f.encode_fact(f.IS_COOL, thing))
        self.state.discard(f.encode_fact(f.IS_HOT, thing))
        return f"You cool the {self.file.names[thing]} using the {self.file.names[receptacle]}."

    def _use(self, thing: int, _: int) -> str:
        # Using it again changes ISON of the domain, which no text tests: a lamp is never off.
        self.state.add(f.encode_fact(f.TOGGLED, thing))
        return f"You turn on the {self.file.names[thing]}."

    def _slice(self, thing: int, knife: int) -> str:
        self.state.add(f.encode_fact(f.SLICED, thing))
        return f"You sliced the {self.file.names[thing]} with the {self.file.names[knife]}."

    def _examine(self, thing: int, _: int) -> str:
        if thing in self.file.location:
            return self._describe_receptacle(thing)
        return self._describe_object(thing)

    def _check_inventory(self, _: int, __: int) -> str:
        agent = self.file.agent
        if f.encode_fact(f.HOLDS_ANY, agent) not in self.state:
            return "You are not carrying anything."
        return f"You are carrying: {self._list_things(self._held)}."

    def _show_help(self, _: int, __: int) -> str:
        from gigpo_jax.envs.alfworld.engine.help_text import HELP

        return HELP

    # Descriptions

    def _describe_surroundings(self, *_: int) -> str:
        file = self.file
        receptacles = file.beside.get(self.place)
        if receptacles is None:
            return f"{_MIDDLE}nothing."
        facing = join_words([file.names[receptacle] for receptacle in receptacles])
        strays = []
        for fact in sorted(self.deleted_contents):
            thing = f.get_first(fact)
            # Taken from a receptacle here, and put into another one here.
            if f.get_second(fact) in receptacles and self._is_here(thing):
                strays.append(thing)
        return f"You are facing the {facing}. Next to it, you see {self._list_things(strays)}."

    def _describe_receptacle(self, receptacle: int) -> str:
        name = self.file.names[receptacle]
        if receptacle not in self.file.openable:
            introduction = f"On the {name}, you see"
        elif f.encode_fact(f.OPENED, receptacle) in self.state:
            introduction = f"The {name} is open. In it, you see"
        else:
            return f"The {name} is closed."
        return f"{introduction} {self._list_things(self._contents.get(receptacle, ()))}."

    def _describe_object(self, thing: int) -> str:
        file = self.file
        name = file.names[thing]
        if thing in file.vessels:
            # From the start of the game: no rule of the domain changes what is inside an object.
            contents = [content for content in file.inside.get(thing, ()) if content != thing]
            return f"This is a normal {name}. In it, you see {self._list_things(contents)}."
        is_sliced = f.encode_fact(f.SLICED, thing) in self.state
        adjectives = self._list_adjectives(thing)
        if adjectives and is_sliced:
            return f"This is a {' and '.join(adjectives)} sliced {name}."
        if adjectives == ["cool"]:
            return f"This is a cold {name}."  # the word differs where nothing else is said
        if adjectives:
            return f"This is a {' and '.join(adjectives)} {name}."
        if thing in file.toggleable and f.encode_fact(f.TOGGLED, thing) in self.state:
            return f"This {name} is on."
        if thing in file.sliceable and is_sliced:
            return f"This is a sliced {name}."
        return f"There's nothing special about {name}."

    def _list_adjectives(self, thing: int) -> list[str]:
        adjectives = []
        if f.encode_fact(f.IS_HOT, thing) in self.state:
            adjectives.append("hot")
        elif f.encode_fact(f.IS_COOL, thing) in self.state:
            adjectives.append("cool")
        if f.encode_fact(f.IS_CLEAN, thing) in self.state:
            adjectives.append("clean")
        return adjectives

    def _list_things(self, things: Iterable[int]) -> str:
        return join_words([f"a {self.file.names[thing]}" for thing in things]) or "nothing"


def join_words(words: list[str]) -> str:
    """Lists words as the games do: "a, b, and c"."""
    if not words:
        return ""
    if len(words) == 1:
        return words[0]
    return f"{', '.join(words[:-1])}, and {words[-1]}"


_ACTIONS: tuple[Callable[[Game, int, int], str], ...] = (
    Game._go,
    Game._open,
    Game._close,
    Game._take,
    Game._move,
    Game._clean,
    Game._heat,
    Game._cool,
    Game._use,
    Game._slice,
    Game._examine,
    Game._describe_surroundings,
    Game._check_inventory,
    Game._show_help,
)
