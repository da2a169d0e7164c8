"""Examples in prompts of agents: won by the experts, never of the panel, and with room for a
step.
"""

import dataclasses
import re
from typing import Any

import pytest

from gigpo_jax.config import default_config, resolve
from gigpo_jax.core.errors import InputError
from gigpo_jax.env_bridge.agents import Examples
from gigpo_jax.env_bridge.prompts import PromptInput
from gigpo_jax.env_bridge.react import ReAct
from gigpo_jax.envs import registry
from gigpo_jax.envs.alfworld.tasks import TASK_TYPES
from gigpo_jax.envs.introductions import find_introduction
from gigpo_jax.rollout.examples import make_examples
from tests.envs.shell.sandboxes import skip_without_sandbox

NO_EXPERT = dataclasses.replace(registry.spec("example"), expert=None)


def examples(
    name: str,
    count: int = 2,
    *,
    panel: Any = (),
    types: Any = (),
    limit: int = 12_000,
    agent: str = "react",
    options: Any = (),
) -> Examples:
    config = default_config()
    config.agent, config.eval.examples, config.env.name, config.sampling.max_prompt_tokens = (
        agent,
        count,
        name,
        limit,
    )
    config.env.max_steps, config.batch.row_length = 4, 13_000
    config = resolve(config, trains=False)
    return make_examples(config, dict(options), panel, types, list)


@pytest.mark.parametrize(
    ("name", "types"),
    [
        ("alfworld", set(TASK_TYPES)),
        ("example", {"find_coin", "find_pearl", "find_ring"}),
        ("search", {"one_hop", "two_hop"}),
        ("webshop", {"beauty", "electronics", "fashion", "garden", "grocery"}),
    ],
)
def test_every_task_type_has_examples_with_thoughts(name: str, types: set[str]) -> None:
    examples_by_type = examples(name, types=types)
    assert set(examples_by_type) == types | {""}
    assert all(len(episodes) == 2 for episodes in examples_by_type.values())
    first_type, second_type = sorted(types)[:2]
    assert examples_by_type[""] == (
        examples_by_type[first_type][0],
        examples_by_type[second_type][0],
    )
    for episode in (episode for episodes in examples_by_type.values() for episode in episodes):
        assert all(event.thought.endswith(".") for event in episode.history), episode
    assert examples_by_type == examples(name, types=types)


@pytest.mark.parametrize("name", sorted(registry.ENVIRONMENTS))
def test_every_environment_says_what_it_is_and_has_examples(name: str) -> None:
    if name == "shell":
        skip_without_sandbox()
    assert find_introduction(name).intro.endswith(".")
    options = {"observation": "text"} if "observation" in registry.spec(name).options else {}
    prompt = ReAct(find_introduction(name), examples(name, 1, options=options))
    text = prompt(PromptInput("do it", "", (), 0, "A room.", None, "no such type"))
    assert text.startswith(find_introduction(name).intro)
    assert text.count("The task was done.") == 1


def test_an_example_of_search() -> None:
    example = examples("search")["two_hop"][0]
    assert example.task == "On which river lies the town where Nolan Holt was born?"
    assert [(event.thought, event.action) for event in example.history] == [
        (
            "I need to know the town where Nolan Holt was born. I search for that.",
            "<search>Nolan Holt was born in</search>",
        ),
        (
            "I found the town where Nolan Holt was born: Tall Bridge. I need to know the river of Tall Bridge. "
            "I search for that.",
            "<search>Tall Bridge is a town on the</search>",
        ),
        (
            "I found the river of Tall Bridge: Green Water. That is the answer.",
            "<answer>Green Water</answer>",
        ),
    ]
    assert [event.observation.count("Tall Bridge") > 0 for event in example.history] == [
        False,
        True,
        True,
    ]


def test_no_example_is_a_task_of_the_panel() -> None:
    first = examples("example", 1)["find_coin"]
    tasks = registry.make("example").tasks("train")
    assert examples("example", 1, panel={tasks[0].id})["find_coin"] != first
    assert examples("example", 1, panel={tasks[1].id})["find_coin"] == first


def test_examples_that_leave_no_room_are_refused() -> None:
    def needed(limit: int, agent: str = "react") -> int:
        with pytest.raises(InputError) as refused:
            examples("example", 1, types={"find_ring"}, limit=limit, agent=agent)
        match = re.fullmatch(
            rf"config.sampling.max_prompt_tokens={limit}: prompts of {agent} with 1 example\(s\) of find_ring take up "
            r"to (\d+) tokens; use that, or fewer eval.examples",
            str(refused.value),
        )
        assert match is not None
        return int(match[1])

    shortest_limit = needed(100)
    examples_by_type = examples("example", 1, types={"find_ring"}, limit=shortest_limit)
    assert needed(shortest_limit - 1) == shortest_limit
    prompt = ReAct(find_introduction("example"), examples_by_type)
    events = [("You close the drawer 2.", 4), ("You open the drawer 2. In it, you see nothing.", 2)]
    for text, count in events:  # the longest observation, or the longest list, counts
        listed = tuple(f"open drawer {number}" for number in range(count))
        assert (
            len(prompt(PromptInput("find the ring", "", (), 1, text, listed, "find_ring")))
            <= shortest_limit
        )
    assert needed(shortest_limit, "reflexion") == shortest_limit + 3 * (
        256 + len("Your note after trial 1, which failed: \n")
    )


def test_what_needs_no_examples_makes_none() -> None:
    assert examples("example", 1, agent="plain") == examples("example", 0) == {}
    agent = f"{__name__}:NO_EXPERT"
    assert examples(agent, 0) == {}
    with pytest.raises(
        InputError, match=f"config.eval.examples=2: {agent} has no expert to make examples; use 0"
    ):
        examples(agent)
