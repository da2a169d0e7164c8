"""The environments as Gymnasium environments: importing this module registers gigpo/NAME-v0 (docs/interfaces.md).

env = gymnasium.make("gigpo/alfworld-v0", panel="small_unseen")
"""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from gigpo_jax.env_bridge.boundary import MAX_CHARACTERS
from gigpo_jax.env_bridge.types import EnvError
from gigpo_jax.envs import registry
from gigpo_jax.errors import InputError
from gigpo_jax.interfaces.world import Step, open_world

_SAMPLE = 32  # characters


class Text(spaces.Text):
    """All texts of at most a million characters, of any alphabet; samples are short and alphanumeric."""

    def __init__(self) -> None:
        super().__init__(MAX_CHARACTERS, min_length=0)

    def contains(self, x: Any) -> bool:
        return isinstance(x, str) and len(x) <= self.max_length

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        return super().sample(mask if mask or probability else (_SAMPLE, None), probability)


class WorldEnv(gymnasium.Env[Any, str]):
    """A world as a Gymnasium environment.

    Observations are texts; of worlds with a picture, dicts of `text` and `image` (uint8 [H, W, 3]). Actions are texts.
    `info` has task, task_id, task_type, anchor, admissible, won, score and valid. An episode is truncated when all its
    actions are used up and it is not won.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi", "rgb_array"], "render_fps": 1}  # noqa: RUF012

    def __init__(
        self,
        name: str,
        *,
        responses: bool = False,
        render_mode: str | None = None,
        **kwargs: Any,
    ) -> None:
        """Builds the environment; other arguments are those of `open_world`.

        Args:
          name: of the registry, or "module:NAME".
          responses: observations are whole prompts, and actions are whole responses of a language model; otherwise
            observations and actions are the environment's own.
          render_mode: "ansi" (the observation's text) or, for a world with a picture, "rgb_array".
        """
        self.world = open_world(name, **kwargs)
        self._player, self._responses = self.world.play(), responses
        try:
            first = self._player.reset(self.world.tasks[0]).observation
            modes = ["ansi", "rgb_array"] if first.images else ["ansi"]
            if render_mode not in (None, *modes):
                raise InputError(f"render_mode={render_mode!r}: {name} has {' and '.join(modes)}")
        except BaseException:
            self._player.close()
            raise
        self._picture = bool(first.images)
        self.observation_space: spaces.Space[Any] = Text()
        if self._picture:
            image = spaces.Box(0, 255, first.images[0].shape, np.uint8)
            self.observation_space = spaces.Dict({"text": Text(), "image": image})
        self.action_space = Text()
        self.metadata = {**self.metadata, "render_modes": modes}
        self.render_mode = render_mode
        self._step: Step | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Starts an episode of a task that is drawn, or of `options["task"]`: a place in the list, or an id."""
        super().reset(seed=seed)
        options = options or {}
        if unknown := sorted(options.keys() - {"task"}):
            raise InputError(f"options={unknown}: not known; give task, a place in the list of tasks or an id")
        which = options["task"] if "task" in options else int(self.np_random.integers(len(self.world.tasks)))
        self._task = self.world.task(which)
        self._step = self._player.reset(self._task)
        return self._observation(self._step), self._info(self._step)

    def step(self, action: str) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Plays an action, or the action in a response; EnvError before `reset` and after the end of an episode."""
        if self._step is None:
            raise EnvError("step before reset: call reset first")
        if not isinstance(action, str):
            raise InputError(f"action={action!r:.80}: give a text")
        self._step = step = (self._player.respond if self._responses else self._player.act)(action)
        return self._observation(step), step.reward, step.terminated, step.truncated, self._info(step)

    def _observation(self, step: Step) -> Any:
        text = step.prompt if self._responses else step.observation.text
        return {"text": text, "image": step.observation.images[0]} if self._picture else text

    def _info(self, step: Step) -> dict[str, Any]:
        seen, task = step.observation, self._task
        return {
            "task": seen.task,
            "task_id": task.id,
            "task_type": task.type,
            "anchor": seen.anchor,
            "admissible": seen.admissible,
            "won": step.won,
            "score": step.score,
            "valid": step.valid,
        }

    def render(self) -> Any:
        """The current observation, in the render mode."""
        if self._step is None:
            raise InputError("render before reset: call reset first")
        seen = self._step.observation
        return seen.images[0] if self.render_mode == "rgb_array" else seen.text

    def close(self) -> None:
        self._player.close()


def register() -> None:
    """Registers gigpo/NAME-v0 for each environment of the registry."""
    for name in registry.ENVIRONMENTS:
        if f"gigpo/{name}-v0" not in gymnasium.registry:
            gymnasium.register(f"gigpo/{name}-v0", f"{__name__}:WorldEnv", kwargs={"name": name})


register()
