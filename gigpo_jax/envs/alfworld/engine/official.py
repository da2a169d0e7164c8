"""The official ALFWorld engine (the alfworld and textworld packages) behind the interface of our own `Game`.

It is the reference that ours is compared with, and it plays what ours refuses: games with another domain or grammar.
It needs about a second to load a game and as much for every reset, and some 50 milliseconds a step. Its waits are
inside a C library and cannot be cut short here; `EnvPool` bounds them from outside, by replacing the worker.

Every game needs a copy of that library to itself. A closed game hands its copy on to the next one and never unloads it:
the copies share C++ objects behind the scenes, and a process that unloaded one crashes when it ends.
"""

import contextlib
import io
import os
import re
import sys
from collections.abc import Iterator
from typing import Any

from gigpo_jax.env_bridge.types import EnvError
from gigpo_jax.envs.alfworld.engine.game import Step
from gigpo_jax.errors import InputError

_free: list[Any] = []  # copies of the planner library whose games were closed
_TASK = re.compile(r"Your task is to: (.*)\.\s*\Z", re.DOTALL)


class OfficialGame:
    """One ALFWorld game, played by the official engine.

    Args:
      path: a `game.tw-pddl`, or the folder that holds it.
      expert: also ask the package's hand-coded expert after every step (it reads the `traj_data.json` beside the game).

    Raises:
      InputError: the packages are not installed, or the engine cannot load the file.
    """

    def __init__(self, path: str | os.PathLike[str], *, expert: bool = False) -> None:
        name = os.fspath(path)
        if os.path.isdir(name):
            name = os.path.join(name, "game.tw-pddl")
        if not os.path.isfile(name):
            raise InputError(f"{name}: there is no such game; give the path of a game.tw-pddl")
        self.path = name
        self.task = ""
        self._library: Any = None
        self._env = self._load(expert)
        self._state: Any = None

    def _load(self, expert: bool) -> Any:
        try:
            import fast_downward
            import textworld
            from alfworld.agents.environment.alfred_tw_env import AlfredDemangler, AlfredExpert, AlfredInfos
            from textworld.envs.pddl import PddlEnv

            with _quiet():
                self._library = _free.pop() if _free else fast_downward.load_lib()
        except ImportError as error:
            raise InputError(
                f'engine="official" needs the alfworld package and what it depends on ({error}); '
                'pip install "gigpo_jax[alfworld]", or use engine="native"'
            ) from error
        base = PddlEnv.__new__(PddlEnv)  # its own __init__ would load one more copy of the library
        textworld.Environment.__init__(base, textworld.EnvInfos(won=True, admissible_commands=True))
        base.downward_lib = self._library
        env = AlfredInfos(AlfredDemangler(base, shuffle=False))
        if expert:
            env = AlfredExpert(env, expert_type="handcoded")
        try:
            with _quiet():
                env.load(self.path)
        except (Exception, SystemExit) as error:  # what the engine raises for a bad game is of every kind
            self.close()
            unsolvable = isinstance(error, KeyError) and error.args == ("val1",)
            why = "its goal cannot be reached" if unsolvable else f"{type(error).__name__}: {error}"
            raise InputError(f"{self.path}: the official engine cannot load this game ({why})") from error
        return env

    def reset(self) -> Step:
        """Starts the game anew; takes about a second.

        Returns:
          The first text, with the room and the task in it; reward 0.0 and not done.

        Raises:
          EnvError: the engine failed.
        """
        with self._playing():
            self._state = self._env.reset()
        feedback = str(self._state["feedback"])
        found = _TASK.search(feedback)
        self.task = found.group(1) if found else ""
        return Step(feedback, self._admissible(), 0.0, False, bool(self._state["won"]))

    def step(self, command: str) -> Step:
        """Gives a command; one that is not admissible changes nothing.

        Raises:
          EnvError: the engine failed, or `reset` was not called.
        """
        if self._state is None:
            raise EnvError(f"{self.path}: step before reset")
        with self._playing():
            self._state, reward, done = self._env.step(command)
        won = bool(self._state["won"])
        return Step(str(self._state["feedback"]), self._admissible(), float(reward), bool(done), won)

    @property
    def expert_plan(self) -> tuple[str, ...]:
        """What the hand-coded expert would do next, where `expert` was asked for; ("look",) when it is at a loss."""
        return tuple(self._state["extra.expert_plan"] or ()) if self._state is not None else ()

    def close(self) -> None:
        """Hands on the copy of the planner library that this game holds; may be called twice."""
        if self._library is not None:
            library, self._library = self._library, None
            library.cleanup()
            _free.append(library)

    def _admissible(self) -> tuple[str, ...]:
        return tuple(self._state["admissible_commands"])

    @contextlib.contextmanager
    def _playing(self) -> Iterator[None]:
        if self._library is None:
            raise EnvError(f"{self.path}: the game is closed")
        try:
            with _quiet():
                yield
        except (Exception, SystemExit) as error:
            raise EnvError(f"{self.path}: the official engine failed ({type(error).__name__}: {error})") from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps the engine's hands off the program: it prints, and it overwrites the command line arguments."""
    arguments = sys.argv
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        sys.argv = arguments
