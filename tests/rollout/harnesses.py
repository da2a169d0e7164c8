"""Agent programs: one of a library that nobody here wrote, and some that fail."""

import time
from collections.abc import Sequence

import openai

from gigpo_jax.env_bridge.harnesses import SessionAddress
from gigpo_jax.env_bridge.types import Task
from gigpo_jax.envs.harness import harness_entry


class Sums:
    """What the programs below share."""

    def tasks(self, split: str) -> Sequence[Task]:
        return [Task(f"{number} plus {number}", "", split) for number in range(4)]

    def close(self) -> None:
        pass


class Library(Sums):
    """A code agent of smolagents; the task's name is what it is asked."""

    def play(self, task: Task, session: SessionAddress) -> None:
        from smolagents import CodeAgent, OpenAIServerModel
        from smolagents.agents import EMPTY_PROMPT_TEMPLATES

        model = OpenAIServerModel(session.model, api_base=session.base_url, api_key=session.api_key)
        prompts = {**EMPTY_PROMPT_TEMPLATES, "system_prompt": "you write code."}
        agent = CodeAgent([], model, prompt_templates=prompts, max_steps=2, verbosity_level=0)
        answer = str(agent.run(task.id))
        with openai.OpenAI(base_url=session.base_url, api_key=session.api_key) as client:
            client.post(
                "/reward", body={"reward": float(len(answer)), "won": False}, cast_to=object
            )


class Raises(Sums):
    """Asks once, then fails."""

    async def play(self, task: Task, session: SessionAddress) -> None:
        async with openai.AsyncOpenAI(base_url=session.base_url, api_key=session.api_key) as client:
            await client.completions.create(model=session.model, prompt=task.id)
        raise ValueError("no idea")


class Refused(Sums):
    """Asks with a prompt that is too long, and posts a reward all the same."""

    def play(self, task: Task, session: SessionAddress) -> None:
        with openai.OpenAI(base_url=session.base_url, api_key=session.api_key) as client:
            try:
                client.completions.create(model=session.model, prompt=[5] * 2000)
            except openai.BadRequestError:
                client.post("/reward", body={"reward": 1.0, "won": True}, cast_to=object)


class Silent(Sums):
    """Posts no reward."""

    async def play(self, task: Task, session: SessionAddress) -> None:
        pass


class Hangs(Sums):
    """Never ends."""

    def play(self, task: Task, session: SessionAddress) -> None:
        time.sleep(10**6)


class Stops(Sums):
    """Raises what a future refuses."""

    def play(self, task: Task, session: SessionAddress) -> None:
        next(iter(()))


LIBRARY, RAISES, REFUSED, SILENT, HANGS, STOPS = (
    harness_entry(f"{__name__}:{kind.__name__}", max_steps=4)
    for kind in (Library, Raises, Refused, Silent, Hangs, Stops)
)
