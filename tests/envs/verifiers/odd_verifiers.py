"""Environments of verifiers for the tests, good and odd: `load_environment(way)`."""

import asyncio
import os
import random
import sys

import verifiers as vf
from datasets import Dataset

ROWS = [{"question": f"What is {number} + 1?", "answer": str(number + 1)} for number in range(4)]


def add(a: int, b: int) -> int:
    """Adds.

    Args:
        a: First number.
        b: Second number.
    """
    return a + b


def last_is_answer(completion: vf.Messages, answer: str) -> float:
    return float(completion[-1].content.strip() == answer)


def score_thought(completion: vf.Messages) -> float:
    """A rubric of the whole response."""
    return 0.25 * completion[-1].content.startswith("<think>")


def compare(completions: list[vf.Messages]) -> list[float]:
    return [0.0 for _ in completions]


def fail(completion: vf.Messages) -> float:
    raise RuntimeError("no score")


class Counter(vf.MultiTurnEnv):
    """Says how many messages there were, and ends with a last message of its own."""

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs) -> vf.Messages:
        count = len(state["trajectory"])
        reply = [vf.UserMessage(content=f"message {count}")]
        if messages[-1].content == "end":
            state["final_env_response"] = [vf.UserMessage(content="bye")]
        return reply


class Odd(vf.MultiTurnEnv):
    """Does what no environment should."""

    def __init__(self, way: str, **kwargs) -> None:
        super().__init__(**kwargs)
        self.way = way

    async def setup_state(self, state: vf.State) -> vf.State:
        if self.way == "fails_at_setup":
            raise vf.Error("no\nsandbox \x1b[2J")
        return state

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs) -> vf.Messages:
        if self.way == "hangs":
            await asyncio.sleep(1000)
        if self.way == "dies":
            os._exit(3)
        if self.way == "raises":
            raise ValueError("odd\n\x1b[2J")
        if self.way == "fails":
            raise vf.Error("odd\n\x1b[2J")
        contents = {
            "huge": "y" * 5_000_000,
            "escapes": "\x1b[2J\x00 red",
            "picture": [{"type": "image_url", "image_url": {"url": "data:,"}}],
            "empty": "",
            "random": str(random.SystemRandom().random()),
        }
        return [vf.UserMessage(content=contents[self.way])]


def load_environment(way: str = "single") -> object:
    train = Dataset.from_list(ROWS)
    rubric = vf.Rubric([last_is_answer, score_thought])
    data = {"dataset": train, "eval_dataset": train.select([0])}
    if way == "single":
        return vf.SingleTurnEnv(**data, rubric=rubric, system_prompt="Answer with a number.")
    if way == "examples":
        few_shot = [
            {"role": "user", "content": "What is 7 + 1?"},
            {"role": "assistant", "content": "8"},
        ]
        return vf.SingleTurnEnv(dataset=train, rubric=rubric, few_shot=few_shot)
    if way == "tool":
        return vf.ToolEnv(tools=[add], **data, rubric=rubric, max_turns=5)
    if way == "counter":
        return Counter(**data, rubric=vf.Rubric([score_thought]), max_turns=3)
    if way == "group":
        return vf.SingleTurnEnv(**data, rubric=vf.Rubric([compare]))
    if way == "no_score":
        return vf.SingleTurnEnv(**data, rubric=vf.Rubric([fail]))
    if way == "exits":
        sys.exit("no")
    if way == "no_environment":
        return [1]
    if way == "raises_at_load":
        raise KeyError("a\nb")
    return Odd(way, **data, rubric=vf.Rubric([score_thought]), max_turns=2)
