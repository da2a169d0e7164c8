"""What the adapters share: an environment with a list of tasks, and the steps of an episode."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gigpo_jax.env_bridge.base import check_whole
from gigpo_jax.env_bridge.boundary import checked_observation, checked_result, checked_tasks
from gigpo_jax.env_bridge.history import History
from gigpo_jax.env_bridge.panels import check_panel, find_panel
from gigpo_jax.env_bridge.paths import cache_folder
from gigpo_jax.env_bridge.prompts import PromptTemplate, build_prompt
from gigpo_jax.env_bridge.types import EnvError, Observation, Task
from gigpo_jax.envs import registry
from gigpo_jax.errors import InputError, nearest

_NO_LIMIT = 1 << 40  # characters of a prompt


@dataclass(frozen=True)
class Step:
    """What an agent gets at the start of an episode and after each action.

    Attributes:
      observation: of the environment.
      prompt: the whole prompt for the next response, in the environment's own words, with history.
      images: of the prompt, uint8 [H, W, 3] each, in the order of their marks; those of past steps too.
      reward: of the action, in the environment's units.
      terminated: whether the episode ended by its rules.
      truncated: whether all its actions are used up, and it is not won.
      won, score: as `types.StepResult.info` has them.
      valid: whether the response kept to the format; always for an action.
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
        return self.terminated or self.truncated


@dataclass(frozen=True)
class World:
    """An environment with a fixed list of tasks. See `open_world`.

    Attributes:
      name: of the registry, or "module:NAME".
      tasks_name: of the panel or the split that the tasks are from.
      tasks: in order.
      options: of the environment's builder.
      template: makes the prompts.
      history: past steps that a prompt shows.
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

    def task(self, which: int | str) -> Task:
        """A task by its place in the list or by its id; raises InputError if there is none."""
        if isinstance(which, str):
            ids = [task.id for task in self.tasks]
            if which in ids:
                return self.tasks[ids.index(which)]
            near = ", ".join(nearest(which, ids)) or f"{ids[0]}, .."
            raise InputError(f"task={which!r}: {self.tasks_name} of {self.name} has no such task; nearest: {near}")
        check_whole("task", which, 0, len(self.tasks) - 1)
        return self.tasks[which]

    def play(self) -> "Player":
        """A new environment; its episodes are independent of those of all others."""
        return Player(self)


def open_world(
    name: str,
    *,
    panel: str | None = None,
    split: str | None = None,
    prompt: str = "full",
    history: int | None = None,
    **options: Any,
) -> World:
    """Finds an environment and its tasks; data that a panel needs is generated first, once, in the cache folder.

    Args:
      name: of the registry, or "module:NAME".
      panel: a panel of the package or a panel file: its tasks in its order, compared with its hashes.
      split: all tasks of a split. Without both: the panel "train" if there is one, else the split "train".
      prompt: style of the prompts, as `env.prompt` of a config.
      history: past steps that a prompt shows; by default the published number.
      **options: of the environment, as `env.options` of a config.

    Raises:
      InputError: a value that cannot be used, or data that is not that of the panel.
    """
    with _plain_keys():
        for key, value in (("name", name), ("panel", panel or "")):
            if not isinstance(value, str):
                raise InputError(f"{key}={value!r}: must be of type str")
        entry = registry.playable(name)
        template = registry.style(name, prompt)
        shown = entry.history if history is None else history
        check_whole("history", shown, 0)
        if panel is not None and split is not None:
            raise InputError(f"panel={panel!r} split={split!r}: give one of them; a panel has the tasks of one split")
        folder = registry.panel_folder(name)
        if panel is None and split is None and (folder / "train.json").is_file():
            panel = "train"
        frozen = None if panel is None else find_panel(panel, name, folder)
        if frozen is not None and frozen.made_from and "data" not in options:
            options["data"] = registry.generate(name, cache_folder(name), **frozen.made_from)
        env = registry.make(name, **options)
        try:
            tasks = checked_tasks(env.tasks(split or "train") if frozen is None else check_panel(frozen, env))
        finally:
            env.close()
        if not tasks:
            raise InputError(f"split={split!r}: {name} has no tasks there; name another split, or make its data")
    return World(name, panel or split or "train", tuple(tasks), options, template, shown)


@contextlib.contextmanager
def _plain_keys() -> Iterator[None]:
    """Names the keys in messages as the arguments of `open_world`, which are those of a config without its sections."""
    try:
        yield
    except InputError as err:
        raise InputError(str(err).replace("config.env.", "")) from err


class Player:
    """Plays episodes of a `World`, one at a time."""

    def __init__(self, world: World) -> None:
        """Builds the environment."""
        self.world = world
        self._entry = registry.spec(world.name)
        self._env = registry.make(world.name, **world.options)
        self._history = History(world.history)
        self._last: Step | None = None

    def reset(self, task: Task) -> Step:
        """Starts an episode."""
        observation = checked_observation(self._env.reset(task))
        self._history = History(self.world.history, task.type)
        self._last = Step(observation, *self._prompt(observation))
        return self._last

    def act(self, action: str) -> Step:
        """Plays an action as it is; EnvError if no episode has been started, or it is over."""
        return self._step(action, action, True)

    def respond(self, response: str) -> Step:
        """Plays the action in a model's response, as it is found by the environment's own rules."""
        parsed = self._entry.parse(response)
        return self._step(parsed.action, parsed.thought, parsed.valid)

    def _step(self, action: str, thought: str, valid: bool) -> Step:
        last = self._last
        if last is None or last.done:
            raise EnvError("step without an episode: call reset first, and again after the end of an episode")
        result = checked_result(self._env.step(action))
        self._history.add(last.observation.text, action, thought, last.observation.images)
        left, won = self._history.steps < self.world.max_steps, bool(result.info["won"])
        ended = result.done and (won or left)
        self._last = Step(
            result.observation,
            *self._prompt(result.observation),
            float(result.reward),
            ended,
            not left and not ended,
            won,
            float(result.info["score"]),
            valid,
        )
        return self._last

    def _prompt(self, observation: Observation) -> tuple[str, tuple[np.ndarray, ...]]:
        """The text of a prompt, and its images."""
        prompt = build_prompt(
            self.world.template, observation, self._history, encode=lambda text, images=(): (), limit=_NO_LIMIT
        )
        return prompt.text, prompt.images

    def close(self) -> None:
        self._env.close()
