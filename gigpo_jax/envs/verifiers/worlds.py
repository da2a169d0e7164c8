"""The environments as verifiers environments (docs/interfaces.md).

entry = "gigpo_jax.envs.verifiers.worlds"
env = verifiers.load_environment(entry, name="alfworld", panel="small_unseen")
"""

import asyncio
import base64
import contextlib
from functools import partial
from typing import Any

import verifiers as vf
from datasets import Dataset

from gigpo_jax.core.png import encode_png
from gigpo_jax.env_bridge.types import IMAGE, EnvError
from gigpo_jax.envs import registry
from gigpo_jax.envs.world import Player, World, WorldStep, open_world


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
      name: Environment, as for `open_world`.
      panel: Panel, as for `open_world`; the dataset has a row for each task.
      split: Split, as for `open_world`.
      eval_panel: Panel of the evaluation dataset; by default that is the dataset itself.
      invalid_penalty: Penalty of a response that does not keep to the format; by default the
        published penalty.
      **options: Options of the environment, as for `open_world`.
    """
    world = open_world(name, panel=panel, split=split, **options)
    evaluation = open_world(name, panel=eval_panel, **options) if eval_panel else world
    penalty = registry.spec(name).invalid_penalty if invalid_penalty is None else invalid_penalty
    return WorldEnv(world, evaluation, penalty)


class WorldEnv(vf.MultiTurnEnv):
    """A world as an environment of verifiers.

    The prompt of every turn is one message, with a window of the history. A turn of a trajectory
    has the `reward` of its action, and in `extras` the `anchor` of its first state, `valid`, `won`
    and `score`.
    """

    def __init__(self, world: World, evaluation: World, invalid_penalty: float) -> None:
        # The penalty is a weight: the reward stays the environment's own, and both are metrics.
        rubric = vf.Rubric(
            [episode_reward, invalid_responses, won, score], [1.0, -invalid_penalty, 0.0, 0.0]
        )
        self._worlds = {"dataset": world, "eval_dataset": evaluation}
        # No max_turns: it would end an episode before its last action.
        super().__init__(
            dataset=partial(make_dataset, world, "dataset"),
            eval_dataset=partial(make_dataset, evaluation, "eval_dataset"),
            rubric=rubric,
        )

    async def setup_state(self, state: vf.State) -> vf.State:
        """Starts the episode."""
        world = self._worlds[state["info"]["dataset"]]
        try:
            # In a thread: a reset may take seconds, and all rollouts share the event loop.
            player, step = await asyncio.to_thread(_start_episode, world, state["info"]["task_id"])
        except EnvError as err:
            raise vf.Error(str(err)) from err
        state.update(player=player, step=step, prompt=make_messages(step))
        return state

    async def get_prompt_messages(self, state: vf.State) -> vf.Messages:
        """Plays the last response, if any, and returns the next prompt."""
        turns = state["trajectory"]
        if not turns:
            return state["prompt"]
        return await self.env_response(turns[-1]["completion"], state)

    async def env_response(
        self, messages_: vf.Messages, state: vf.State, **kwargs: Any
    ) -> vf.Messages:
        """Plays the last response's action; returns the next prompt."""
        turn = state["trajectory"][-1]
        # The state in which the response was given, before the step replaces it.
        anchor = state["step"].observation.anchor
        response = read_text(messages_[-1])
        try:
            step = await asyncio.to_thread(state["player"].respond, response)
        except EnvError as err:
            raise vf.Error(str(err)) from err
        turn["reward"] = step.reward
        turn["extras"].update(anchor=anchor, valid=step.valid, won=step.won, score=step.score)
        state["step"] = step
        # verifiers ends the rollout where this key is set.
        if step.done:
            state["final_env_response"] = [vf.UserMessage(content=step.observation.text)]
        return make_messages(step)

    async def render_completion(self, state: vf.State) -> None:
        """Collects the messages after the first prompt: responses, and the prompts between them."""
        completion: list[Any] = []
        for turn in state["trajectory"]:
            if completion:
                completion += turn["prompt"]
            completion += turn["completion"]
        completion += state.get("final_env_response") or []
        state["completion"] = completion

    @vf.cleanup
    async def close_player(self, state: vf.State) -> None:
        """Frees the environment; also after an error."""
        state.pop("step", None)
        # Not there if the start failed; that one closed its player itself.
        player = state.pop("player", None)
        if player is not None:
            player.close()


def _start_episode(world: World, task_id: str) -> tuple[Player, WorldStep]:
    player = world.play()
    try:
        return player, player.reset(world.task(task_id))
    # Also a cancelled start: the player may hold a process or files.
    except BaseException:
        player.close()
        raise


def make_dataset(world: World, dataset: str) -> Dataset:
    """Makes a row for each task, with its first prompt, its correct answer and its id.

    Args:
      world: World of the tasks.
      dataset: Key of the world in `WorldEnv`; rollouts of a row find their world by it.
    """
    rows = []
    with contextlib.closing(world.play()) as player:
        for task in world.tasks:
            prompt = player.reset(task).prompt
            info = {
                "dataset": dataset,
                "tasks": world.tasks_name,
                "task_id": task.id,
                "task_type": task.type,
            }
            message = {"role": "user", "content": prompt}
            rows.append({"prompt": [message], "answer": task.answer, "info": info})
    return Dataset.from_list(rows)


def make_messages(step: WorldStep) -> vf.Messages:
    """Makes one message of a prompt, with the images at the prompt's marks."""
    if not step.images:
        return [vf.UserMessage(content=step.prompt)]
    first_text, *texts = step.prompt.split(IMAGE)
    content: list[dict[str, Any]] = [{"type": "text", "text": first_text}]
    for image, text in zip(step.images, texts, strict=True):
        url = f"data:image/png;base64,{base64.b64encode(encode_png(image)).decode()}"
        content.append({"type": "image_url", "image_url": {"url": url}})
        content.append({"type": "text", "text": text})
    # Servers refuse empty texts.
    return [vf.UserMessage(content=[item for item in content if item.get("text") != ""])]


def read_text(message: Any) -> str:
    """Returns a model message's text; "" if it has none."""
    content = message["content"] if isinstance(message, dict) else message.content
    return content if isinstance(content, str) else ""


# The names of these functions are metrics of verifiers.


def episode_reward(state: vf.State) -> float:
    """The sum of the environment's rewards."""
    return sum(turn["reward"] or 0.0 for turn in state["trajectory"])


def invalid_responses(state: vf.State) -> float:
    """Number of responses that did not keep to the format."""
    return float(sum(not valid for valid in _collect_extras(state, "valid")))


def won(state: vf.State) -> float:
    """1 if the task is done."""
    return float(any(_collect_extras(state, "won")))


def score(state: vf.State) -> float:
    """Returns the share of the task done at the end."""
    scores = _collect_extras(state, "score")
    return float(scores[-1]) if scores else 0.0


def _collect_extras(state: vf.State, key: str) -> list[Any]:
    return [turn["extras"][key] for turn in state["trajectory"] if key in turn["extras"]]
