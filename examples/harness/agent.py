"""An agent program that knows the policy as a model of an OpenAI-compatible server, and nothing of
the trainer.

It plays Sokoban. docs/serve.md explains what it may do; config.py trains the policy with it.
"""

from collections.abc import Sequence
from urllib.parse import quote

from openai import AsyncOpenAI

from gigpo_jax.env_bridge.harnesses import SessionAddress
from gigpo_jax.env_bridge.types import Task
from gigpo_jax.envs import registry
from gigpo_jax.envs.harness import harness_entry

MOVES = 15


class Player:
    """A `harnesses.Harness`."""

    def __init__(self) -> None:
        self._game = registry.make("sokoban", observation="text", max_steps=MOVES)

    def tasks(self, split: str) -> Sequence[Task]:
        return self._game.tasks(split)

    async def play(self, task: Task, session: SessionAddress) -> None:
        room, rewards = self._game.reset(task), []
        async with AsyncOpenAI(base_url=session.base_url, api_key=session.api_key) as client:
            for _ in range(MOVES):
                answer = await client.chat.completions.create(
                    model=session.model,
                    messages=[{"role": "user", "content": " ".join(room.text.split())}],
                    extra_headers={"X-Anchor-State": quote(room.anchor)},
                )
                result = self._game.step(_move(answer.choices[0].message.content or ""))
                room = result.observation
                rewards.append(result.reward)
                if result.done:
                    break
            ending = {"reward": rewards, "won": result.info["won"], "score": result.info["score"]}
            await client.post("/reward", body=ending, cast_to=object)

    def close(self) -> None:
        self._game.close()


def _move(text: str) -> str:
    """The first move that the text between the action tags contains; "", which does nothing,
    without one.
    """
    inside = text.partition("<action>")[2].partition("</action>")[0]
    return next((move for move in ("up", "down", "left", "right", "still") if move in inside), "")


PLAYER = harness_entry("agent:Player", max_steps=MOVES)
