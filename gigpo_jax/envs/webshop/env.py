"""WebShop as a text environment: `registry.make("webshop", data=DIR)`.

As in the published training wrapper, the observation is the page's text after the instruction, each node in single
quotes; the reward is 10 for a purchase with score 1, else 0; an episode has at most 15 steps.
"""

import functools
import hashlib
import json
import os
from collections.abc import Sequence
from typing import Any

from gigpo_jax.env_bridge.base import check_whole
from gigpo_jax.env_bridge.paths import filled_in
from gigpo_jax.env_bridge.types import EnvError, Observation, StepResult, Task
from gigpo_jax.envs.webshop.catalogue.catalogue import Catalogue, open_catalogue
from gigpo_jax.envs.webshop.data import generate
from gigpo_jax.envs.webshop.engine import pages
from gigpo_jax.envs.webshop.engine.remaining import Purchase, best_purchases, remaining
from gigpo_jax.envs.webshop.engine.session import OBSERVATIONS, Page, Session
from gigpo_jax.errors import InputError

WON_REWARD = 10.0  # the published reward of a purchase with score 1
SPLITS = ("train", "test")
SEARCH = "search[<your query>]"
ANCHORS = ("page", "page+options")


class GoalTasks(Sequence[Task]):
    """The tasks of a split, made on access: a large catalogue has hundreds of thousands."""

    def __init__(self, catalogue: Catalogue, split: str) -> None:
        self._catalogue, self._split = catalogue, split
        self._goals = catalogue.test_goals if split == "test" else catalogue.train_goals

    def __len__(self) -> int:
        return len(self._goals)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return tuple(self._task(goal) for goal in self._goals[index])
        return self._task(self._goals[index])

    def _task(self, index: int) -> Task:
        goal = self._catalogue.goal(index)
        return Task(id=goal.id, type=goal.category, split=self._split, data=str(index))

    def __reduce__(self) -> tuple[Any, ...]:
        return tuple, (tuple(self),)


class WebshopEnv:
    """Plays the goals of a catalogue, one episode at a time. See `make`."""

    def __init__(
        self,
        catalogue: Catalogue,
        *,
        observation: str,
        max_steps: int,
        show_attributes: bool,
        anchor: str,
        regret: bool,
    ) -> None:
        self.catalogue = catalogue
        self._rich = observation == "text_rich"
        self._session = Session(catalogue, observation=observation, show_attributes=show_attributes)
        self._max_steps, self._options_in_anchor, self._regret = max_steps, anchor == "page+options", regret
        self._last: StepResult | None = None
        self._task, self._plain_task = "", True
        self._steps = 0
        self._best: dict[str, Purchase] = {}
        self._first = self._remaining = 0  # actions to the best purchase, from the first page and from this one

    def tasks(self, split: str) -> Sequence[Task]:
        """The goals of a split in the catalogue's canonical order; their type is the department."""
        if split not in SPLITS:
            raise InputError(f"split={split!r}: WebShop has {' and '.join(SPLITS)}; choose one of them")
        return GoalTasks(self.catalogue, split)

    def digest(self, task: Task) -> str:
        """SHA-256 of everything that a task's score depends on, in hexadecimal; panels freeze it."""
        goal = self.catalogue.goal(self._index(task))
        row = self.catalogue.row(goal.asin)
        product = None if row is None else self.catalogue.product(row).record()
        what = [goal.instruction, goal.attributes, goal.options, goal.price_cap, product]
        return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()

    def _index(self, task: Task) -> int:
        index = int(task.data) if task.data.isdecimal() else -1
        if self.catalogue.goal(index).id != task.id:
            raise InputError(f"task={task.id!r}: is not goal {index} of {self.catalogue.folder}; list its tasks again")
        return index

    def reset(self, task: Task) -> Observation:
        index = self._index(task)
        page = self._session.reset(index)
        self._task = self._session.plain_text().split(pages.SEPARATOR)[2]
        self._plain_task = self._task == self._session.goal.instruction.strip() not in ("", "WebShop", "Instruction:")
        self._steps = 0
        observation = self._observe(page)
        self._last = StepResult(observation, 0.0, False, {"won": False, "score": 0.0})
        if self._regret:
            self._best = best_purchases(self.catalogue, index)
            self._first = self._remaining = remaining(self._session, self._best) or 0
        return observation

    def step(self, action: str) -> StepResult:
        """Acts. The reward is 10 for a purchase with score 1; the episode ends with any purchase, or after `max_steps`.

        After the end it returns the last observation, with reward 0.
        """
        last = self._last
        if last is None:
            raise EnvError("step before reset: start an episode with reset(task)")
        if last.done:
            return StepResult(last.observation, 0.0, True, last.info)
        page = self._session.step(action)
        self._steps += 1
        won = page.done and page.reward == 1.0
        info: dict[str, bool | float] = {"won": won, "score": float(page.reward)}
        if self._regret:
            before, left = self._remaining, remaining(self._session, self._best)
            self._remaining = self._first if left is None else left  # one would have to begin again
            info["regret"] = float(self._remaining - before + 1)
        self._last = StepResult(
            self._observe(page), WON_REWARD if won else 0.0, page.done or self._steps >= self._max_steps, info
        )
        return self._last

    def _observe(self, page: Page) -> Observation:
        session = self._session
        if session.place == "done":  # this page does not repeat the task
            text = session.tail
        elif self._plain_task:
            text = _quoted(session.tail)
        else:  # the wrapper searches the task among the segments
            after = session.plain_text().split(pages.SEPARATOR)
            text = _quoted(pages.SEPARATOR.join(after[after.index(self._task) + 1 :]))
        anchor = text
        if self._options_in_anchor:
            anchor += f"\nchosen: {json.dumps(session.options, sort_keys=True)}"
        admissible = (SEARCH, *session.clicks) if page.available["has_search_bar"] else session.clicks
        return Observation(self._rich_text(page) if self._rich else text, anchor, admissible, self._task)

    def _rich_text(self, page: Page) -> str:
        for head in ("WebShop\nInstruction: \n", "Instruction:\n"):
            before, found, after = page.text.partition(f"{head}{self._session.goal.instruction}\n")
            if found:
                return before + after
        return page.text

    def close(self) -> None:
        """Ends the episode; other environments of the process still use the catalogue."""
        self._last = None


@functools.lru_cache(maxsize=512)
def _quoted(text: str) -> str:
    """Each segment of a page's text in single quotes."""
    return pages.SEPARATOR.join(f"'{segment}'" for segment in text.split(pages.SEPARATOR))


_open = functools.lru_cache(maxsize=2)(open_catalogue)  # the environments of a worker share one open catalogue


def make(
    data: str | os.PathLike[str] | None = None,
    *,
    observation: str = "text",
    goals: str = "synthetic",
    max_steps: int = 15,
    show_attributes: bool = False,
    draw_seed: int | None = None,
    seed: int = 0,
    nouns: str | None = None,
    num_products: int | None = None,
    variant: str | None = None,
    anchor: str = "page",
    regret: bool = False,
) -> WebshopEnv:
    """Builds the environment; the parameters are its options, which `registry.ENVIRONMENTS` explains.

    Raises:
      InputError: an option that cannot be used.
    """
    if observation not in OBSERVATIONS:
        raise InputError(f"observation={observation!r}: choose one of {', '.join(OBSERVATIONS)}")
    if anchor not in ANCHORS:
        raise InputError(f"anchor={anchor!r}: choose one of {', '.join(ANCHORS)}")
    check_whole("max_steps", max_steps, 1)
    folder = filled_in("config.env.options.data", data) if data is not None else generate.ensure_catalogue()
    catalogue = _open(
        folder.resolve(),
        goals=goals,
        draw_seed=draw_seed,
        seed=seed,
        nouns=nouns,
        num_products=num_products,
        variant=variant,
    )
    return WebshopEnv(
        catalogue,
        observation=observation,
        max_steps=max_steps,
        show_attributes=show_attributes,
        anchor=anchor,
        regret=regret,
    )
