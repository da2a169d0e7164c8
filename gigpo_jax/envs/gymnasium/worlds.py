"""The environments as Gymnasium environments (docs/interfaces.md).

Importing this module registers gigpo/NAME-v0:

    env = gymnasium.make("gigpo/alfworld-v0", panel="small_unseen")
"""

import ctypes
import multiprocessing
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import shared_memory as vectors

from gigpo_jax.core.errors import InputError
from gigpo_jax.env_bridge.boundary import MAX_CHARACTERS
from gigpo_jax.env_bridge.types import EnvError
from gigpo_jax.envs import registry
from gigpo_jax.envs.world import WorldStep, open_world

_SAMPLE_CHARACTERS = 32
_LENGTH_BYTES = 4  # of a text, before it in shared memory
_TEXT_BYTES = _LENGTH_BYTES + 4 * MAX_CHARACTERS  # UTF-8 has at most 4 bytes a character


class Text(spaces.Text):
    """Space of all texts of at most a million characters, with short alphanumeric samples."""

    def __init__(self) -> None:
        super().__init__(MAX_CHARACTERS, min_length=0)

    def contains(self, x: Any) -> bool:
        """Whether a value is such a text."""
        return isinstance(x, str) and len(x) <= self.max_length

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """Draws a text, of fixed length without a mask."""
        if not mask and not probability:
            mask = (_SAMPLE_CHARACTERS, None)
        return super().sample(mask, probability)


# Gymnasium's own functions pass the characters of an alphabet, once; with these, `AsyncVectorEnv`
# has any text of its processes.
@vectors.create_shared_memory.register(Text)
def _create_texts(space: Text, n: int = 1, ctx: Any = multiprocessing) -> Any:
    return ctx.RawArray(ctypes.c_ubyte, n * _TEXT_BYTES)


@vectors.write_to_shared_memory.register(Text)
def _write_text(space: Text, index: int, value: str, texts: Any) -> None:
    # A policy may write half of a surrogate pair, which strict UTF-8 refuses.
    content = value.encode("utf-8", "surrogatepass")
    start = index * _TEXT_BYTES
    view = memoryview(texts).cast("B")
    view[start : start + _LENGTH_BYTES] = len(content).to_bytes(_LENGTH_BYTES, "little")
    view[start + _LENGTH_BYTES : start + _LENGTH_BYTES + len(content)] = content


@vectors.read_from_shared_memory.register(Text)
def _read_shared_texts(space: Text, texts: Any, n: int = 1) -> "_SharedTexts":
    return _SharedTexts(texts, n)


class _SharedTexts(Sequence[str]):
    """The newest texts of all processes, decoded when read."""

    def __init__(self, texts: Any, count: int) -> None:
        self._view = memoryview(texts).cast("B")
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return tuple(self)[index]
        # `range` refuses an index that is too large, and accepts negative ones.
        start = range(self._count)[index] * _TEXT_BYTES + _LENGTH_BYTES
        length = int.from_bytes(self._view[start - _LENGTH_BYTES : start], "little")
        return bytes(self._view[start : start + length]).decode("utf-8", "surrogatepass")

    def __deepcopy__(self, memo: Any) -> tuple[str, ...]:
        # Gymnasium reads shared memory once and returns copies of what it has read.
        return tuple(self)


class WorldEnv(gymnasium.Env[Any, str]):
    """A world as a Gymnasium environment.

    Observations are texts; of worlds with a picture, dicts of `text` and `image` (uint8 [H, W, 3]).
    Actions are texts. `info` has task, task_id, task_type, anchor, admissible, won, score and
    valid. An episode is truncated when all its actions are used up and it is not won.
    """

    # Gymnasium reads it from the class; an object has its own copy.
    metadata: dict[str, Any] = {  # noqa: RUF012
        "render_modes": ["ansi", "rgb_array"],
        "render_fps": 1,
    }

    def __init__(
        self,
        name: str,
        *,
        responses: bool = False,
        render_mode: str | None = None,
        **kwargs: Any,
    ) -> None:
        """Builds the environment.

        Args:
          name: Name in the registry, or "module:NAME".
          responses: Whether observations are whole prompts and actions are whole responses of a
            language model; otherwise they are the environment's own.
          render_mode: Render mode, "ansi" (the observation's text) or, for a world with a picture,
            "rgb_array".
          **kwargs: Arguments of `open_world`.

        Raises:
          InputError: An argument is invalid.
        """
        self.world = open_world(name, **kwargs)
        self._player = self.world.play()
        self._responses = responses
        try:
            # Only an observation tells whether there are pictures, and of which size.
            first_observation = self._player.reset(self.world.tasks[0]).observation
            modes = ["ansi", "rgb_array"] if first_observation.images else ["ansi"]
            if render_mode not in (None, *modes):
                raise InputError(
                    f"{name} has {' and '.join(modes)}", key="render_mode", value=repr(render_mode)
                )
        # Nobody else can close the player of an environment that was never built.
        except BaseException:
            self._player.close()
            raise
        self._has_picture = bool(first_observation.images)
        self.observation_space: spaces.Space[Any] = Text()
        if self._has_picture:
            image = spaces.Box(0, 255, first_observation.images[0].shape, np.uint8)
            self.observation_space = spaces.Dict({"text": Text(), "image": image})
        self.action_space = Text()
        self.metadata = {**self.metadata, "render_modes": modes}
        self.render_mode = render_mode
        self._step: WorldStep | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Starts an episode of a random task, or of `options["task"]`, an index or an id."""
        super().reset(seed=seed)
        options = options or {}
        unknown_options = sorted(options.keys() - {"task"})
        if unknown_options:
            raise InputError(
                "not known",
                key="options",
                value=str(unknown_options),
                fix=("give task, a place in the list of tasks or an id"),
            )
        if "task" in options:
            self._task = self.world.task(options["task"])
        else:
            # The generator of Gymnasium, so that `reset(seed=..)` chooses the task.
            self._task = self.world.task(int(self.np_random.integers(len(self.world.tasks))))
        self._step = self._player.reset(self._task)
        return self._make_observation(self._step), self._make_info(self._step)

    def step(self, action: str) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Plays an action, or the action in a response.

        Raises:
          EnvError: No episode has been started, or it is over.
        """
        if self._step is None:
            raise EnvError("step before reset: call reset first")
        if not isinstance(action, str):
            raise InputError("must be a text", key="action", value=f"{action!r:.80}")
        play = self._player.respond if self._responses else self._player.act
        self._step = step = play(action)
        observation = self._make_observation(step)
        return observation, step.reward, step.terminated, step.truncated, self._make_info(step)

    def _make_observation(self, step: WorldStep) -> Any:
        text = step.prompt if self._responses else step.observation.text
        if self._has_picture:
            return {"text": text, "image": step.observation.images[0]}
        return text

    def _make_info(self, step: WorldStep) -> dict[str, Any]:
        return {
            "task": step.observation.task,
            "task_id": self._task.id,
            "task_type": self._task.type,
            "anchor": step.observation.anchor,
            "admissible": step.observation.admissible,
            "won": step.won,
            "score": step.score,
            "valid": step.valid,
        }

    def render(self) -> Any:
        """The current observation, in the render mode."""
        if self._step is None:
            raise InputError("no episode has begun", key="render", fix="call reset first")
        observation = self._step.observation
        return observation.images[0] if self.render_mode == "rgb_array" else observation.text

    def close(self) -> None:
        """Frees the environment."""
        self._player.close()


def register_environments() -> None:
    """Registers gigpo/NAME-v0 for each environment of the registry."""
    for name in registry.ENVIRONMENTS:
        # The module may be imported again, and Gymnasium warns of a second registration.
        if f"gigpo/{name}-v0" not in gymnasium.registry:
            gymnasium.register(f"gigpo/{name}-v0", f"{__name__}:WorldEnv", kwargs={"name": name})


register_environments()
