"""The environments as verifiers environments (docs/interfaces.md).

env = verifiers.load_environment("gigpo_jax.interfaces.verifiers", name="alfworld", panel="small_unseen")
"""

import asyncio
import base64
import contextlib
from collections.abc import Iterable
from functools import partial
from typing import Any

import verifiers as vf
from datasets import Dataset

from gigpo_jax.env_bridge.png import encode_png
from gigpo_jax.env_bridge.types import IMAGE, EnvError
from gigpo_jax.envs import registry
from gigpo_jax.interfaces.world import Player, Step, World, open_world


def load_environment(
    name: str = "alfworld",
    *,
    panel: str | None = None,
    split: str | None = None,
    eval_panel: str | None = None,
    invalid_penalty: float | None = None,
    **options: Any,
) -> vf.Environment:
    """The entry point of verifiers.

    Args:
      name, panel, split, options: as for `open_world`; the dataset has a row for each task.
      eval_panel: the panel of the evaluation dataset; by default that is the dataset itself.
      invalid_penalty: what a response that does not keep to the format costs; by default the published penalty.
    """
    world = open_world(name, panel=panel, split=split, **options)
    evaluation = open_world(name, panel=eval_panel, **options) if eval_panel else world
    penalty = registry.spec(name).invalid_penalty if invalid_penalty is None else invalid_penalty
    return WorldEnv(world, evaluation, penalty)


class WorldEnv(vf.MultiTurnEnv):
    """Plays a world: the prompt of every turn is one message of its own, with a window of the history.

    A turn of a trajectory has the `reward` of its action, and in `extras` the `anchor` of the state it started from,
    `valid`, `won` and `score`.
    """

    def __init__(self, world: World, evaluation: World, invalid_penalty: float) -> None:
        rubric = vf.Rubric([episode_reward, invalid_responses, won, score], [1.0, -invalid_penalty, 0.0, 0.0])
        self._worlds = {"dataset": world, "eval_dataset": evaluation}
        data = {which: partial(rows, known, which) for which, known in self._worlds.items()}
        super().__init__(**data, rubric=rubric)  # without max_turns: it would end an episode before its last action

    async def setup_state(self, state: vf.State) -> vf.State:
        """Starts the episode."""
        world = self._worlds[state["info"]["dataset"]]
        try:
            player, step = await asyncio.to_thread(_start, world, state["info"]["task_id"])
        except EnvError as err:
            raise vf.Error(str(err)) from err
        state.update(player=player, step=step, prompt=messages(step))
        return state

    async def get_prompt_messages(self, state: vf.State) -> vf.Messages:
        turns = state["trajectory"]
        return await self.env_response(turns[-1]["completion"], state) if turns else state["prompt"]

    async def env_response(self, messages_: vf.Messages, state: vf.State, **kwargs: Any) -> vf.Messages:
        """Plays the action in the last response; returns the next prompt."""
        turn, before = state["trajectory"][-1], state["step"]
        try:
            step = await asyncio.to_thread(state["player"].respond, text_of(messages_[-1]))
        except EnvError as err:
            raise vf.Error(str(err)) from err
        turn["reward"] = step.reward
        anchor = before.observation.anchor
        turn["extras"].update(anchor=anchor, valid=step.valid, won=step.won, score=step.score)
        state["step"] = step
        if step.done:
            state["final_env_response"] = [vf.UserMessage(content=step.observation.text)]
        return messages(step)

    async def render_completion(self, state: vf.State) -> None:
        """All that came after the first prompt: responses, and prompts between them."""
        shown: list[Any] = []
        for turn in state["trajectory"]:
            shown += [*(turn["prompt"] if shown else []), *turn["completion"]]
        state["completion"] = shown + (state.get("final_env_response") or [])

    @vf.cleanup
    async def close_player(self, state: vf.State) -> None:
        """Frees the environment; also after an error."""
        state.pop("step", None)
        player = state.pop("player", None)
        if player is not None:
            player.close()


def _start(world: World, task_id: str) -> tuple[Player, Step]:
    player = world.play()
    try:
        return player, player.reset(world.task(task_id))
    except BaseException:
        player.close()
        raise


def rows(world: World, which: str) -> Dataset:
    """A row for each task: the first prompt, the known answer, and which task it is of which dataset."""
    with contextlib.closing(world.play()) as player:
        table = [
            {
                "prompt": [{"role": "user", "content": player.reset(task).prompt}],
                "answer": task.answer,
                "info": {"dataset": which, "tasks": world.tasks_name, "task_id": task.id, "task_type": task.type},
            }
            for task in world.tasks
        ]
    return Dataset.from_list(table)


def messages(step: Step) -> vf.Messages:
    """A prompt as one message; an image stands where the prompt has its mark."""
    if not step.images:
        return [vf.UserMessage(content=step.prompt)]
    texts = step.prompt.split(IMAGE)
    parts: list[dict[str, Any]] = [{"type": "text", "text": texts[0]}]
    for image, after in zip(step.images, texts[1:], strict=True):
        url = f"data:image/png;base64,{base64.b64encode(encode_png(image)).decode()}"
        parts += [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": after}]
    return [vf.UserMessage(content=[part for part in parts if part.get("text") != ""])]


def text_of(message: Any) -> str:
    """The text of a model's message."""
    content = message["content"] if isinstance(message, dict) else message.content
    return content if isinstance(content, str) else ""


def episode_reward(state: vf.State) -> float:
    """The sum of the environment's rewards."""
    return sum(turn["reward"] or 0.0 for turn in state["trajectory"])


def invalid_responses(state: vf.State) -> float:
    """How many responses did not keep to the format."""
    return float(sum(not valid for valid in _extras(state, "valid")))


def won(state: vf.State) -> float:
    """1 if the task is done."""
    return float(any(_extras(state, "won")))


def score(state: vf.State) -> float:
    """The share of the task that is done at the end."""
    return float([0.0, *_extras(state, "score")][-1])


def _extras(state: vf.State, key: str) -> Iterable[Any]:
    return [turn["extras"][key] for turn in state["trajectory"] if key in turn["extras"]]
