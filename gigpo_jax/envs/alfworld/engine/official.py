"""The official ALFWorld engine (packages alfworld and textworld) behind the interface of the native `Game`.

It is the reference for the native engine, and plays games that the native engine refuses. A load and a reset take
about a second, a step about 50 ms. `EnvPool` replaces a worker whose call into the engine's C library hangs.

Every game needs its own copy of that library. A closed game passes its copy to the next one and never unloads it: the
copies share C++ objects, and a process that unloaded one crashes at exit.
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
      expert: ask the package's hand-coded expert after every step; it reads `traj_data.json` in the game's folder.

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
                'pip install alfworld==0.4.2, or use engine="native"'
            ) from error
        base = PddlEnv.__new__(PddlEnv)  # its __init__ would load another copy of the library
        textworld.Environment.__init__(base, textworld.EnvInfos(won=True, admissible_commands=True))
        base.downward_lib = self._library
        env = AlfredInfos(AlfredDemangler(base, shuffle=False))
        if expert:
            env = AlfredExpert(env, expert_type="handcoded")
        try:
            with _quiet():
                env.load(self.path)
        except (Exception, SystemExit) as error:  # a bad game raises exceptions of many types
            self.close()
            unsolvable = isinstance(error, KeyError) and error.args == ("val1",)
            why = "its goal cannot be reached" if unsolvable else f"{type(error).__name__}: {error}"
            raise InputError(f"{self.path}: the official engine cannot load this game ({why})") from error
        return env

    def reset(self) -> Step:
        """Restarts the game, as `Game.reset`; EnvError if the engine failed."""
        with self._playing():
            self._state = self._env.reset()
        feedback = str(self._state["feedback"])
        found = _TASK.search(feedback)
        self.task = found.group(1) if found else ""
        return Step(feedback, self._admissible(), 0.0, False, bool(self._state["won"]))

    def step(self, command: str) -> Step:
        """As `Game.step`; EnvError if the engine failed, or `reset` was not called."""
        if self._state is None:
            raise EnvError(f"{self.path}: step before reset")
        with self._playing():
            self._state, reward, done = self._env.step(command)
        won = bool(self._state["won"])
        return Step(str(self._state["feedback"]), self._admissible(), float(reward), bool(done), won)

    @property
    def expert_plan(self) -> tuple[str, ...]:
        """The next commands of the hand-coded expert, if `expert`; ("look",) when it has no plan."""
        return tuple(self._state["extra.expert_plan"] or ()) if self._state is not None else ()

    def close(self) -> None:
        """Passes on this game's copy of the planner library; may be called twice."""
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
    """Hides what the engine prints, and restores the command line arguments that it overwrites."""
    arguments = sys.argv
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        sys.argv = arguments
