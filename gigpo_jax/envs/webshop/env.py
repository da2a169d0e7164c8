"""WebShop as a text environment: `registry.make("webshop", data=DIR)`.

As in the published training wrapper, the observation is the page's text after the instruction, each
node in single quotes; the reward is 10 for a purchase with score 1, else 0; an episode has at most
15 steps.
"""

import functools
import hashlib
import json
import os
from collections.abc import Sequence
from typing import Any

from gigpo_jax.core.errors import InputError
from gigpo_jax.env_bridge.base import check_whole
from gigpo_jax.env_bridge.option_checks import check_split
from gigpo_jax.env_bridge.paths import expand_path
from gigpo_jax.env_bridge.types import EnvError, Observation, StepResult, Task
from gigpo_jax.envs.webshop.catalogue.catalogue import Catalogue, open_catalogue
from gigpo_jax.envs.webshop.data import generate
from gigpo_jax.envs.webshop.engine import pages
from gigpo_jax.envs.webshop.engine.remaining import (
    Purchase,
    best_purchases,
    count_remaining_actions,
)
from gigpo_jax.envs.webshop.engine.session import OBSERVATIONS, Page, Session

WON_REWARD = 10.0  # the published reward of a purchase with score 1
SPLITS = ("train", "test")
SEARCH = "search[<your query>]"


class GoalTasks(Sequence[Task]):
    """The tasks of a split, made on access: a large catalogue has hundreds of thousands."""

    def __init__(self, catalogue: Catalogue, split: str) -> None:
        self._catalogue = catalogue
        self._split = split
        self._goals = catalogue.test_goals if split == "test" else catalogue.train_goals

    def __len__(self) -> int:
        return len(self._goals)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return tuple(self._make_task(goal) for goal in self._goals[index])
        return self._make_task(self._goals[index])

    def _make_task(self, index: int) -> Task:
        goal = self._catalogue.goal(index)
        return Task(id=goal.id, type=goal.category, split=self._split, data=str(index))

    def __reduce__(self) -> tuple[Any, ...]:
        # Another process has no open catalogue: it gets the tasks themselves.
        return tuple, (tuple(self),)


class WebshopEnv:
    """An environment of a catalogue's goals, one episode at a time; see `make`."""

    def __init__(
        self,
        catalogue: Catalogue,
        *,
        observation: str,
        max_steps: int,
        anchor: str,
        regret: bool,
    ) -> None:
        self.catalogue = catalogue
        self._rich = observation == "text_rich"
        self._session = Session(catalogue, observation=observation)
        self._max_steps = max_steps
        self._anchor = anchor
        self._regret = regret
        self._last: StepResult | None = None
        self._task = ""
        self._is_plain_task = True  # whether the task's text is one segment of the page
        self._steps = 0
        self._purchases: dict[str, Purchase] = {}
        # Actions to the best purchase, from the first page and from the open one.
        self._first_remaining = 0
        self._remaining = 0

    def tasks(self, split: str) -> Sequence[Task]:
        """Returns a split's goals in the catalogue's canonical order, with departments as types."""
        check_split(split, SPLITS)
        return GoalTasks(self.catalogue, split)

    def digest(self, task: Task) -> str:
        """Hashes all that a task's score depends on: a hexadecimal SHA-256 that panels freeze."""
        goal = self.catalogue.goal(self._goal_index(task))
        row = self.catalogue.row(goal.asin)
        product = None if row is None else self.catalogue.product(row).record()
        # The price cap is among them, so a panel also detects other draws.
        content = [goal.instruction, goal.attributes, goal.options, goal.price_cap, product]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def _goal_index(self, task: Task) -> int:
        index = int(task.data) if task.data.isdecimal() else -1
        if self.catalogue.goal(index).id != task.id:
            raise InputError(
                f"is not goal {index} of {self.catalogue.folder}",
                key="task",
                value=repr(task.id),
                fix="list its tasks again",
            )
        return index

    def reset(self, task: Task) -> Observation:
        index = self._goal_index(task)
        page = self._session.reset(index)
        # As the published wrapper finds it: the third segment, which an instruction with the
        # separator in it would cut.
        self._task = self._session.plain_text().split(pages.SEPARATOR)[2]
        instruction = self._session.goal.instruction.strip()
        has_other_text = instruction not in ("", "WebShop", "Instruction:")
        self._is_plain_task = has_other_text and self._task == instruction
        self._steps = 0
        observation = self._observe(page)
        self._last = StepResult(observation, 0.0, False, {"won": False, "score": 0.0})
        if self._regret:
            self._purchases = best_purchases(self.catalogue, index)
            self._remaining = count_remaining_actions(self._session, self._purchases) or 0
            self._first_remaining = self._remaining
        return observation

    def step(self, action: str) -> StepResult:
        """Acts; the episode ends with any purchase, or after `max_steps`.

        The reward is 10 for a purchase with score 1. After the end it returns the last observation,
        with reward 0.
        """
        last = self._last
        if last is None:
            raise EnvError("step before reset: start an episode with reset(task)")
        if last.done:
            return StepResult(last.observation, 0.0, True, last.info)
        page = self._session.step(action)
        self._steps += 1
        # Exactly 1: rewards are ratios of whole numbers, and a full score has no rounding.
        won = page.done and page.reward == 1.0
        info: dict[str, bool | float] = {"won": won, "score": float(page.reward)}
        if self._regret:
            info["regret"] = self._measure_regret()
        reward = WON_REWARD if won else 0.0
        done = page.done or self._steps >= self._max_steps
        self._last = StepResult(self._observe(page), reward, done, info)
        return self._last

    def _measure_regret(self) -> float:
        """Counts the actions that the last one wasted; 0 if it led closer to the best purchase."""
        previous = self._remaining
        remaining = count_remaining_actions(self._session, self._purchases)
        # After another purchase one would have to begin again.
        self._remaining = self._first_remaining if remaining is None else remaining
        return float(self._remaining - previous + 1)

    def _observe(self, page: Page) -> Observation:
        session = self._session
        text = self._page_text()
        # The published anchor; chosen options are not on the page.
        anchor = text
        if self._anchor == "page+options":
            anchor += f"\nchosen: {json.dumps(session.options, sort_keys=True)}"
        elif self._anchor == "state":
            anchor = session.state
        admissible = session.clicks
        if page.available["has_search_bar"]:
            admissible = (SEARCH, *admissible)
        agent_text = self._rich_text(page) if self._rich else text
        return Observation(agent_text, anchor, admissible, self._task)

    def _page_text(self) -> str:
        """Returns the page's text after the instruction, as the published wrapper writes it."""
        session = self._session
        if session.place == "done":  # this page does not repeat the task
            return session.tail
        if self._is_plain_task:
            return _quote_segments(session.tail)
        # The wrapper looks for the task among the segments; the first equal one counts.
        segments = session.plain_text().split(pages.SEPARATOR)
        tail = segments[segments.index(self._task) + 1 :]
        return _quote_segments(pages.SEPARATOR.join(tail))

    def _rich_text(self, page: Page) -> str:
        """The `text_rich` observation without the instruction."""
        for head in ("WebShop\nInstruction: \n", "Instruction:\n"):
            instruction = f"{head}{self._session.goal.instruction}\n"
            if instruction in page.text:
                return page.text.replace(instruction, "", 1)
        return page.text

    def close(self) -> None:
        """Ends the episode; other environments of the process still use the catalogue."""
        self._last = None


@functools.lru_cache(maxsize=512)
def _quote_segments(text: str) -> str:
    """Each segment of a page's text in single quotes."""
    return pages.SEPARATOR.join(f"'{segment}'" for segment in text.split(pages.SEPARATOR))


# The environments of a worker share one open catalogue.
_open_cached_catalogue = functools.lru_cache(maxsize=2)(open_catalogue)


def make(
    data: str | os.PathLike[str] | None = None,
    *,
    observation: str = "text",
    goals: str = "synthetic",
    max_steps: int = 15,
    draw_seed: int | None = None,
    nouns: str | None = None,
    variant: str | None = None,
    anchor: str = "page",
    regret: bool = False,
) -> WebshopEnv:
    """Builds the environment; `registry.ENVIRONMENTS` explains its options.

    Raises:
      InputError: an option cannot be used.
    """
    if observation not in OBSERVATIONS:
        raise InputError(
            f"must be one of {', '.join(OBSERVATIONS)}", key="observation", value=repr(observation)
        )
    check_whole("max_steps", max_steps, 1)
    if data is None:
        folder = generate.ensure_catalogue()
    else:
        folder = expand_path("config.env.options.data", data)
    # Resolved, so that two spellings of one folder share the open catalogue.
    catalogue = _open_cached_catalogue(
        folder.resolve(),
        goals=goals,
        draw_seed=draw_seed,
        nouns=nouns,
        variant=variant,
    )
    return WebshopEnv(
        catalogue,
        observation=observation,
        max_steps=max_steps,
        anchor=anchor,
        regret=regret,
    )
