"""Worlds: environments with a list of tasks, for other trainers and agents to play."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gigpo_jax.core.errors import InputError
from gigpo_jax.core.spelling import nearest_names
from gigpo_jax.env_bridge.base import check_whole
from gigpo_jax.env_bridge.boundary import validate_observation, validate_result
from gigpo_jax.env_bridge.exchanges import Exchange
from gigpo_jax.env_bridge.panels import Panel, check_panel, find_panel
from gigpo_jax.env_bridge.paths import cache_folder
from gigpo_jax.env_bridge.prompt_building import build_prompt
from gigpo_jax.env_bridge.prompts import History, Prompt, PromptTemplate
from gigpo_jax.env_bridge.task_lists import validate_tasks
from gigpo_jax.env_bridge.types import EnvError, Observation, Task
from gigpo_jax.envs import registry
from gigpo_jax.envs.entry_types import Environment
from gigpo_jax.envs.panels import panel_folder

_NO_LIMIT = 1 << 40  # tokens of a prompt


@dataclass(frozen=True)
class WorldStep:
    """Input of an agent at the start and after actions.

    Attributes:
      observation: Observation of the environment.
      prompt: Prompt for the next response, in the environment's own words, with history.
      images: Images of the prompt and its past steps, uint8 [H, W, 3] each, in the order of
        their marks.
      reward: Reward of the action, in the environment's units.
      terminated: Whether the episode ended by its rules.
      truncated: Whether all its actions are used up, and it is not won.
      won: Whether the task is done, as in `types.StepResult.info`.
      score: Share of the task that is done, as in `types.StepResult.info`.
      valid: Whether the response kept to the format; always true for an action.
    """

    observation: Observation
    prompt: str
    images: tuple[np.ndarray, ...]
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    won: bool = False
    score: float = 0.0
    valid: bool = True

    @property
    def done(self) -> bool:
        """Whether the episode is over."""
        return self.terminated or self.truncated


@dataclass(frozen=True)
class World:
    """An environment with fixed tasks, as from `open_world`.

    Attributes:
      name: Name in the registry, or "module:NAME".
      tasks_name: Name of the panel or split of the tasks.
      tasks: Tasks in order.
      options: Options of the environment's builder.
      template: Template of the prompts.
      history: Number of past steps that a prompt shows.
    """

    name: str
    tasks_name: str
    tasks: tuple[Task, ...]
    options: Mapping[str, Any]
    template: PromptTemplate
    history: int

    @property
    def max_steps(self) -> int:
        """The length of an episode, in actions."""
        return int(self.options.get("max_steps", registry.spec(self.name).max_steps))

    def task(self, index_or_id: int | str) -> Task:
        """Returns the task of an index or an id.

        Raises InputError if there is none.
        """
        if not isinstance(index_or_id, str):
            check_whole("task", index_or_id, 0, len(self.tasks) - 1)
            return self.tasks[index_or_id]
        ids = [task.id for task in self.tasks]
        if index_or_id not in ids:
            suggestions = ", ".join(nearest_names(index_or_id, ids)) or f"{ids[0]}, .."
            raise InputError(
                f"{self.tasks_name} of {self.name} has no such task",
                key="task",
                value=repr(index_or_id),
                fix=f"nearest: {suggestions}",
            )
        return self.tasks[ids.index(index_or_id)]

    def play(self) -> "Player":
        """Builds an environment with episodes independent of all others."""
        return Player(self)


def playable_spec(name: str) -> Environment:
    """Finds the entry of an environment with steps.

    Raises InputError for a harness, which has no steps to play.
    """
    entry = registry.spec(name)
    if entry.harness:
        raise InputError(
            "a harness plays whole episodes by itself",
            key="config.env.name",
            value=repr(name),
            fix="name an environment",
        )
    return entry


def open_world(
    name: str,
    *,
    panel: str | None = None,
    split: str | None = None,
    prompt: str = "full",
    history: int | None = None,
    **options: Any,
) -> World:
    """Finds an environment and its tasks, and generates the data of a panel on first use.

    The data is generated once, in the cache folder.

    Args:
      name: Name in the registry, or "module:NAME".
      panel: Panel of the package or panel file: its tasks in its order, compared with its hashes.
      split: Split, to use all of its tasks. Without both: the panel "train" if there is one, else
        the split "train".
      prompt: Style of the prompts, as `env.prompt` of a config.
      history: Number of past steps that a prompt shows; by default the published number.
      **options: Options of the environment, as `env.options` of a config.

    Raises:
      InputError: A value is invalid, or the data differs from the panel's data.
    """
    # Callers pass arguments, not config keys: messages must name what they wrote.
    with _plain_keys():
        for key, value in (("name", name), ("panel", panel or "")):
            if not isinstance(value, str):
                raise InputError("must be of type str", key=key, value=repr(value))
        entry = playable_spec(name)
        template = registry.find_style(name, prompt)
        if history is None:
            history = entry.history
        check_whole("history", history, 0)
        if panel is not None and split is not None:
            raise InputError(
                f"split={split!r} is given too",
                key="panel",
                value=repr(panel),
                fix="give one of them: a panel has the tasks of one split",
            )

        folder = panel_folder(name)
        # A frozen panel is preferred: its tasks are the same on every machine.
        if panel is None and split is None and (folder / "train.json").is_file():
            panel = "train"
        if panel is None:
            tasks = _list_tasks(name, split or "train", options)
            if not tasks:
                raise InputError(
                    f"{name} has no tasks there",
                    key="split",
                    value=repr(split),
                    fix="name another split, or make its data",
                )
        else:
            frozen_panel = find_panel(panel, name, folder)
            # Data that the user names is compared with the panel, never replaced.
            if frozen_panel.made_from and "data" not in options:
                options["data"] = registry.generate_data(
                    name, cache_folder(name), **frozen_panel.made_from
                )
            tasks = _list_panel_tasks(name, frozen_panel, options)
    return World(name, panel or split or "train", tasks, options, template, history)


def _list_tasks(name: str, split: str, options: Mapping[str, Any]) -> tuple[Task, ...]:
    env = registry.make(name, **options)
    with contextlib.closing(env):
        return tuple(validate_tasks(env.tasks(split)))


def _list_panel_tasks(name: str, panel: Panel, options: Mapping[str, Any]) -> tuple[Task, ...]:
    env = registry.make(name, **options)
    with contextlib.closing(env):
        return tuple(validate_tasks(check_panel(panel, env)))


@contextlib.contextmanager
def _plain_keys() -> Iterator[None]:
    """Names the keys in messages as the arguments of `open_world`, without a config's sections."""
    try:
        yield
    except InputError as err:
        raise err.with_key(err.key.removeprefix("config.env.")) from err


class Player:
    """Plays episodes of a `World`, one at a time."""

    def __init__(self, world: World) -> None:
        """Builds the environment."""
        self.world = world
        self._entry = registry.spec(world.name)
        self._env = registry.make(world.name, **world.options)
        self._history = History(world.history)
        self._current_step: WorldStep | None = None

    def reset(self, task: Task) -> WorldStep:
        """Starts an episode."""
        observation = validate_observation(self._env.reset(task))
        self._history = History(self.world.history, task.type)
        prompt = self._build_prompt(observation)
        self._current_step = WorldStep(observation, prompt.text, prompt.images)
        return self._current_step

    def act(self, action: str) -> WorldStep:
        """Plays an action as it is.

        Raises EnvError if no episode has been started, or it is over.
        """
        return self._play(action, thought=action, valid=True)

    def respond(self, response: str) -> WorldStep:
        """Plays the action in a model's response, as the environment's own rules parse it."""
        parsed = self._entry.parse(response)
        return self._play(parsed.action, thought=parsed.thought, valid=parsed.valid)

    def _play(self, action: str, *, thought: str, valid: bool) -> WorldStep:
        previous_step = self._current_step
        # Environments repeat their last result after the end. Here that would hide a caller's
        # mistake.
        if previous_step is None or previous_step.done:
            raise EnvError(
                "step without an episode: call reset first, and again after the end of an episode"
            )
        result = validate_result(self._env.step(action))
        observation = previous_step.observation
        self._history.add(observation.text, action, thought, observation.images)
        won = bool(result.info["won"])
        # Counted here, as not every environment has a limit of its own.
        last_action_used = self._history.steps >= self.world.max_steps
        # An environment also says done when its own limit is reached: that is a truncation.
        terminated = result.done and (won or not last_action_used)
        prompt = self._build_prompt(result.observation)
        self._current_step = WorldStep(
            result.observation,
            prompt.text,
            prompt.images,
            reward=float(result.reward),
            terminated=terminated,
            truncated=last_action_used and not terminated,
            won=won,
            score=float(result.info["score"]),
            valid=valid,
        )
        return self._current_step

    def _build_prompt(self, observation: Observation) -> Prompt:
        # The trainer tokenises and cuts prompts itself: no limit, and no tokens here.
        prompt = build_prompt(
            self.world.template,
            observation,
            self._history,
            encode=lambda *_, **__: (),
            limit=_NO_LIMIT,
        )
        # The trainer holds the conversation and needs the new message alone.
        self._history.exchanges = (Exchange(""),) * bool(prompt.exchanges)
        if prompt.exchanges:
            last = prompt.exchanges[-1]
            prompt = replace(prompt, images=(*last.system_images, *last.images))
        return prompt

    def close(self) -> None:
        """Frees the environment."""
        self._env.close()
