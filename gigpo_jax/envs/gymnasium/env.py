"""Anybody's Gymnasium environment as a text environment (docs/gymnasium.md).

A task is a seed. An episode follows from the seed and the actions if all randomness comes from
Gymnasium's `np_random`.
"""

import contextlib
import dataclasses
import hashlib
import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from gigpo_jax.core.errors import InputError
from gigpo_jax.core.optional import optional_imports
from gigpo_jax.core.spelling import nearest_names
from gigpo_jax.env_bridge.base import check_whole
from gigpo_jax.env_bridge.option_checks import check_split
from gigpo_jax.env_bridge.types import EnvError, Observation, StepResult, Task
from gigpo_jax.envs.games import SPLITS
from gigpo_jax.envs.gymnasium.renderers import find_renderer

FIRST_SEEDS = {"train": 0, "test": 1_000_000}  # so the splits share no seed
NO_SUCH_ACTION = "There is no such action.\n"
_NAME_KEY = "config.env.name"
_OPTIONS_KEY = "config.env.options"
_AS_IT_IS = contextlib.nullcontext()
_START_INFO: dict[str, bool | float] = {"won": False, "score": 0.0}


class GymnasiumEnv:
    """A `TextEnv` of a Gymnasium environment, opened by `prepare` or the first `reset`.

    Workers call both under a time limit.
    """

    def __init__(
        self,
        source: str,
        *,
        kwargs: Mapping[str, Any] | None = None,
        renderer: str = "",
        actions: Sequence[str] | None = None,
        admissible: str = "",
        task: str | None = None,
        anchor: str = "text",
        won_above: float | None = None,
        time_limit: int | None = None,
    ) -> None:
        """Checks what can be checked without opening the environment.

        Args:
          source: ID, or MODULE:ID.
          kwargs: Keyword arguments of `gymnasium.make`.
          renderer: Reference "module:NAME" of a `Renderer` or a function; "": the ready one.
          actions: Names of discrete actions; None: the renderer's.
          admissible: Key of `info` with the admissible actions of a text environment.
          task: Words of the task; None: the renderer's.
          anchor: "text" or "state".
          won_above: Reward above which an episode that terminates is won.
          time_limit: Length of an episode; None: as registered.

        Raises:
          InputError: An unknown ID, a missing package or an option that cannot be used.
        """
        if time_limit is not None:
            check_whole("time_limit", time_limit, 1)
        self._id = _find_id(source)
        self._name = repr(f"gymnasium:{source}")
        self._kwargs = dict(kwargs or {})
        self._time_limit = time_limit
        self._admissible_key = admissible
        self._task_words = task
        self._renderer = find_renderer(self._id, renderer)
        if actions is not None:
            self._renderer = dataclasses.replace(self._renderer, actions=tuple(actions))
        if won_above is not None:
            self._renderer = dataclasses.replace(self._renderer, won_above=won_above)
        if anchor == "state" and self._renderer.state is None:
            raise InputError(
                "the renderer tells no state",
                key="config.env.anchor",
                value="'state'",
                fix="use text, or give a Renderer with state in env.options.renderer",
            )
        self._anchor = anchor
        self._env: Any = None
        self._words = task or ""
        self._text = ""
        self._result: StepResult | None = None

    @property
    def world(self) -> Any:
        """The environment itself, without wrappers, after a `reset`."""
        return self._env.unwrapped

    def tasks(self, split: str) -> Sequence[Task]:
        """Lists a split's tasks, a seed each; the splits share no seed."""
        check_split(split, SPLITS)
        tasks = []
        for number in range(SPLITS[split]):
            seed = FIRST_SEEDS[split] + number
            tasks.append(Task(f"{self._id}/{split}/{number:05d}", "", split, data=str(seed)))
        return tasks

    def digest(self, task: Task) -> str:
        """SHA-256 of the first observation, in hexadecimal; panels freeze it."""
        observation = self.reset(task)
        return hashlib.sha256(f"{observation.task}\n{observation.text}".encode()).hexdigest()

    def prepare(self) -> None:
        """Starts one episode; bad input ends the command here."""
        self.reset(self.tasks("train")[0])

    def reset(self, task: Task) -> Observation:
        if self._env is None:
            self._env = self._open()
        with contextlib.redirect_stdout(None) if self._renderer.mutes_reset else _AS_IT_IS:
            observation, info = self._env.reset(seed=int(task.data))
        if self._task_words is None:
            self._words = self._renderer.task(self._env.unwrapped)
        first_observation = self._observe(observation, info)
        self._result = StepResult(first_observation, 0.0, False, _START_INFO)
        return first_observation

    def step(self, action: str) -> StepResult:
        """Acts; a text that is no action changes nothing."""
        if self._result is None:
            raise EnvError("step before reset: start an episode with reset(task)")
        if self._result.done:
            return StepResult(self._result.observation, 0.0, True, self._result.info)
        choice = self._read_action(action)
        if choice is None:
            text = NO_SUCH_ACTION + self._text
            repeated = dataclasses.replace(self._result.observation, text=text)
            return StepResult(repeated, 0.0, False, _START_INFO)
        observation, reward, terminated, truncated, info = self._env.step(choice)
        won = bool(info.get("is_success", terminated and reward > self._renderer.won_above))
        done = bool(terminated or truncated)
        result_info: dict[str, bool | float] = {"won": won, "score": float(won)}
        self._result = StepResult(self._observe(observation, info), reward, done, result_info)
        return self._result

    def close(self) -> None:
        if self._env is not None:
            self._env.close()
        self._env = None
        self._result = None

    def _open(self) -> Any:
        """Makes the environment and checks its actions; raises InputError."""
        import gymnasium

        try:
            env = gymnasium.make(
                self._id,
                max_episode_steps=self._time_limit,
                disable_env_checker=True,
                **self._kwargs,
            )
        except (gymnasium.error.Error, ImportError) as err:
            raise InputError(f"cannot be made ({err})", key=_NAME_KEY, value=self._name) from err
        except TypeError as err:
            key = f"{_OPTIONS_KEY}.kwargs"
            raise InputError(
                f"gymnasium.make cannot use them ({err})", key=key, value=str(self._kwargs)
            ) from err
        try:
            self._check_actions(env.action_space)
        except InputError:
            env.close()
            raise
        return env

    def _check_actions(self, space: Any) -> None:
        """Raises InputError unless actions are texts or have names."""
        from gymnasium import spaces

        if isinstance(space, spaces.Text):
            return
        if not isinstance(space, spaces.Discrete):
            raise InputError(
                f"its actions are {space}, which no words name",
                key=_NAME_KEY,
                value=self._name,
                fix="use an environment with Discrete or Text actions",
            )
        names = self._renderer.actions
        if len({name.lower() for name in names}) != space.n or len(names) != space.n:
            raise InputError(
                f"the environment has {space.n} actions",
                key=f"{_OPTIONS_KEY}.actions",
                value=str(names),
                fix="give each a name of its own, in the order of numbers",
            )

    def _read_action(self, action: str) -> Any:
        """The environment's value of an action, or None."""
        space = self._env.action_space
        if not hasattr(space, "n"):
            return action if space.contains(action) else None
        names = [name.lower() for name in self._renderer.actions]
        name = action.strip().lower()
        return names.index(name) + int(space.start) if name and name in names else None

    def _observe(self, observation: Any, info: Mapping[str, Any]) -> Observation:
        env = self._env.unwrapped
        self._text = self._require_text(self._renderer.text(env, observation))
        anchor = self._text
        if self._anchor == "state" and self._renderer.state is not None:
            anchor = self._require_text(self._renderer.state(env, observation))
        return Observation(self._text, anchor, self._list_actions(info), self._words)

    def _require_text(self, value: Any) -> str:
        if not isinstance(value, str):
            raise InputError(
                f"{self._renderer.name} gives a {type(value).__name__}, not a text",
                key=f"{_OPTIONS_KEY}.renderer",
                fix="name a function from environment and observation to text",
            )
        return value

    def _list_actions(self, info: Mapping[str, Any]) -> tuple[str, ...] | None:
        if hasattr(self._env.action_space, "n"):
            names = self._renderer.actions
            mask = info.get("action_mask", [True] * len(names))
            return tuple(name for name, allowed in zip(names, mask) if name and allowed)
        if not self._admissible_key:
            return None
        if self._admissible_key not in info:
            raise InputError(
                f"info has only {', '.join(map(str, info)) or 'nothing'}",
                key=f"{_OPTIONS_KEY}.admissible",
                value=repr(self._admissible_key),
            )
        return tuple(info[self._admissible_key])


def _find_id(source: str) -> str:
    """Imports the module of MODULE:ID and returns the ID.

    Raises:
      InputError: A package is missing, or the ID is not registered.
    """
    value = repr(f"gymnasium:{source}")
    with optional_imports("gymnasium", key=_NAME_KEY, value=value):
        import gymnasium
    module, _, name = source.rpartition(":")
    try:
        if module:
            importlib.import_module(module)
        gymnasium.spec(name)
    except ImportError as err:
        raise InputError(
            f"cannot import {module} ({err})", key=_NAME_KEY, value=value, fix="install its package"
        ) from err
    except gymnasium.error.Error as err:
        near = ", ".join(nearest_names(name, gymnasium.registry))
        raise InputError(
            f"not registered, nearest: {near}" if near else "not registered",
            key=_NAME_KEY,
            value=value,
            fix="name it gymnasium:MODULE:ID if importing a module registers it",
        ) from err
    return name
