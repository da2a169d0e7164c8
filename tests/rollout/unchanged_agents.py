"""Agents as they come: with models, limits and temperatures of their own."""

from collections.abc import Sequence

import openai

from gigpo_jax.env_bridge.harnesses import SessionAddress
from gigpo_jax.env_bridge.types import Task
from gigpo_jax.envs.harness import harness_entry

TURNS = 2
MAP = "the map: # # # # p . b g"


class Maps:
    """Tasks, and the reward of an agent's last text."""

    def tasks(self, split: str) -> Sequence[Task]:
        return [Task(f"{MAP} {number}", "", split) for number in range(4)]

    def close(self) -> None:
        pass

    async def post_reward(self, session: SessionAddress, text: str) -> None:
        async with openai.AsyncOpenAI(base_url=session.base_url, api_key=session.api_key) as client:
            reward = {"reward": float("down" in text or "up" in text)}
            await client.post("/reward", body=reward, cast_to=object)


class ResponsesAgent(Maps):
    """Speaks OpenAI's Responses."""

    async def play(self, task: Task, session: SessionAddress) -> None:
        async with openai.AsyncOpenAI(base_url=session.base_url, api_key=session.api_key) as client:
            answer = None
            for turn in range(TURNS):
                answer = await client.responses.create(
                    model="gpt-5",
                    instructions="you move.",
                    input=f"{task.id} move {turn}",
                    previous_response_id=answer.id if answer else None,
                    temperature=0.2,
                    max_output_tokens=32_000,
                )
        assert answer is not None
        await self.post_reward(session, answer.output_text)


class MessagesAgent(Maps):
    """Speaks Anthropic's Messages, with streams."""

    async def play(self, task: Task, session: SessionAddress) -> None:
        import anthropic

        url = session.environ()["ANTHROPIC_BASE_URL"]
        chat: list = []
        text = ""
        async with anthropic.AsyncAnthropic(base_url=url, api_key=session.api_key) as client:
            for turn in range(TURNS):
                chat.append({"role": "user", "content": f"{task.id} move {turn}"})
                async with client.messages.stream(
                    model="claude-sonnet-4-5",
                    system="you move.",
                    messages=chat,
                    max_tokens=32_000,
                    metadata={"user_id": "a"},
                    extra_body={"temperature": 0.2},
                ) as stream:
                    answer = await stream.get_final_message()
                text = "".join(block.text for block in answer.content)
                chat.append({"role": "assistant", "content": text or "still"})
        await self.post_reward(session, text)


RESPONSES = harness_entry("tests.rollout.unchanged_agents:ResponsesAgent", max_steps=TURNS)
MESSAGES = harness_entry("tests.rollout.unchanged_agents:MessagesAgent", max_steps=TURNS)
