"""The official ALFWorld engine behind the interface of the native `Game`.

Its packages are alfworld and textworld. It is the reference for the native engine, and plays games
that the native engine refuses. A load and a reset take about a second, a step about 50 ms.
`EnvPool` replaces a worker whose call into the engine's C library hangs.

Every game needs its own copy of that library. A closed game passes its copy to the next one.
"""

import contextlib
import io
import os
import re
import sys
from collections.abc import Iterator
from typing import Any

from gigpo_jax.core.errors import InputError
from gigpo_jax.env_bridge.types import EnvError
from gigpo_jax.envs.alfworld.engine.game import GameStep

# Copies of the planner library whose games were closed. A copy is never unloaded: the copies share
# C++ objects, and a process that unloaded one crashes at exit.
_free_libraries: list[Any] = []
_TASK = re.compile(r"Your task is to: (.*)\.\s*\Z", re.DOTALL)


class OfficialGame:
    """One ALFWorld game, played by the official engine.

    Args:
      path: A `game.tw-pddl`, or the folder that holds it.
      expert: Whether the package's hand-coded expert is asked after every step; it reads
        `traj_data.json` in the game's folder.

    Raises:
      InputError: the packages are not installed, or the engine cannot load the file.
    """

    def __init__(self, path: str | os.PathLike[str], *, expert: bool = False) -> None:
        name = os.fspath(path)
        if os.path.isdir(name):
            name = os.path.join(name, "game.tw-pddl")
        # Before the packages are imported: a wrong path has a message of its own.
        if not os.path.isfile(name):
            raise InputError(
                "there is no such game", key=name, fix="give the path of a game.tw-pddl"
            )
        self.path = name
        self.task = ""
        self._library: Any = None
        self._env = self._load(expert)
        self._state: Any = None

    def _load(self, expert: bool) -> Any:
        try:
            import fast_downward
            import textworld
            from alfworld.agents.environment.alfred_tw_env import (
                AlfredDemangler,
                AlfredExpert,
                AlfredInfos,
            )
            from textworld.envs.pddl import PddlEnv

            with _silence_engine():
                if _free_libraries:
                    self._library = _free_libraries.pop()
                else:
                    self._library = fast_downward.load_lib()
        # A package installed with --no-deps has files but cannot be imported.
        except ImportError as error:
            raise InputError(
                f"needs the alfworld package and its dependencies ({error})",
                key="engine",
                value="'official'",
                fix="pip install alfworld==0.4.2, or use 'native'",
            ) from error
        # Without __init__, which would load another copy of the library.
        base = PddlEnv.__new__(PddlEnv)
        textworld.Environment.__init__(base, textworld.EnvInfos(won=True, admissible_commands=True))
        base.downward_lib = self._library
        env = AlfredInfos(AlfredDemangler(base, shuffle=False))
        if expert:
            env = AlfredExpert(env, expert_type="handcoded")
        try:
            with _silence_engine():
                env.load(self.path)
        except (Exception, SystemExit) as error:  # a bad game raises exceptions of many types
            self.close()
            reason = f"{type(error).__name__}: {error}"
            # What the engine raises at load for a goal that cannot be reached.
            if isinstance(error, KeyError) and error.args == ("val1",):
                reason = "its goal cannot be reached"
            raise InputError(
                f"the official engine cannot load this game ({reason})", key=self.path
            ) from error
        return env

    def reset(self) -> GameStep:
        """Restarts the game, as `Game.reset`; EnvError if the engine failed."""
        with self._guard_engine():
            self._state = self._env.reset()
        feedback = str(self._state["feedback"])
        match = _TASK.search(feedback)
        self.task = match.group(1) if match else ""
        return GameStep(feedback, self._list_commands(), 0.0, False, bool(self._state["won"]))

    def step(self, command: str) -> GameStep:
        """Carries out a command, as `Game.step`.

        Raises EnvError if the engine failed, or `reset` was not called.
        """
        if self._state is None:
            raise EnvError(f"{self.path}: step before reset")
        with self._guard_engine():
            self._state, reward, done = self._env.step(command)
        won = bool(self._state["won"])
        return GameStep(
            str(self._state["feedback"]), self._list_commands(), float(reward), bool(done), won
        )

    @property
    def expert_plan(self) -> tuple[str, ...]:
        """Returns the next commands of the hand-coded expert; ("look",) if it has no plan."""
        if self._state is None:
            return ()
        return tuple(self._state["extra.expert_plan"] or ())

    def close(self) -> None:
        """Passes on the planner library's copy; may be called twice."""
        if self._library is not None:
            library = self._library
            self._library = None
            # The next game needs the copy without the state of this one.
            library.cleanup()
            _free_libraries.append(library)

    def _list_commands(self) -> tuple[str, ...]:
        return tuple(self._state["admissible_commands"])

    @contextlib.contextmanager
    def _guard_engine(self) -> Iterator[None]:
        """Turns whatever the engine raises into EnvError."""
        if self._library is None:
            raise EnvError(f"{self.path}: the game is closed")
        try:
            with _silence_engine():
                yield
        except (Exception, SystemExit) as error:
            raise EnvError(
                f"{self.path}: the official engine failed ({type(error).__name__}: {error})"
            ) from error


@contextlib.contextmanager
def _silence_engine() -> Iterator[None]:
    """Hides the engine's output, and restores sys.argv, which the engine overwrites."""
    arguments = sys.argv
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        sys.argv = arguments
