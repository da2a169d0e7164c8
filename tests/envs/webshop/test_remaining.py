"""The fewest actions to the best purchase, against a search through all pages of a small shop."""

import copy
import json
import shutil
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from gigpo_jax.core.errors import InputError
from gigpo_jax.envs import registry
from gigpo_jax.envs.webshop import Session, open_catalogue
from gigpo_jax.envs.webshop.catalogue.catalogue import Catalogue
from gigpo_jax.envs.webshop.catalogue.goals import ShoppingGoal
from gigpo_jax.envs.webshop.data.generate import ensure_catalogue
from gigpo_jax.envs.webshop.engine.remaining import best_purchases, count_remaining_actions

BUY = "click[buy now]"
Key = tuple[Any, ...]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Catalogue:
    """12 products, so that a search can have two pages.

    The style "dark" also counts as the color "dark blue".
    """
    folder = tmp_path_factory.mktemp("shop")
    for path in ensure_catalogue(folder, products=12, seed=0).glob("items_*.json"):
        shutil.copy(path, folder)
    (path,) = folder.glob("items_shuffle*.json")
    products = json.loads(path.read_text())
    values = {"color": ("dark blue", "blue", "red"), "style": ("blue", "dark", "light")}
    products[0]["customization_options"] = {
        name: [{"value": value} for value in entries] for name, entries in values.items()
    }
    path.write_text(json.dumps(products))
    return open_catalogue(folder)


def key_of(session: Session) -> Key:
    keywords = " ".join(session._keywords)
    return (
        session.place,
        session.tail,
        tuple(sorted(session.options.items())),
        keywords,
        session._page_number,
    )


def copy_and_step(session: Session, action: str) -> Session:
    """A copy of a session after an action."""
    successor = copy.copy(session)
    successor.options = dict(session.options)
    successor._visited = set(session._visited)
    successor.step(action)
    return successor


def explore_pages(
    first: Session, queries: list[str]
) -> tuple[dict[Key, Session], dict[Key, set[Key]]]:
    """All pages that clicks and these searches lead to, and the predecessors of each.

    Only the first two pages of a search count.
    """
    pages = {key_of(first): first}
    predecessors = defaultdict(set)
    fresh = [first]
    while fresh:
        page = fresh.pop()
        for action in (*page.clicks, *(f"search[{query}]" for query in queries)):
            if action == BUY or (action == "click[next >]" and page._page_number == 2):
                continue
            successor = copy_and_step(page, action)
            key = key_of(successor)
            predecessors[key].add(key_of(page))
            if key not in pages:
                pages[key] = successor
                fresh.append(successor)
    return pages, predecessors


def count_actions(ends: set[Key], predecessors: dict[Key, set[Key]]) -> dict[Key, int]:
    """The fewest actions to one of these pages, and one more."""
    lengths: dict[Key, int] = {}
    frontier = ends
    length = 1
    while frontier:
        lengths |= dict.fromkeys(frontier, length)
        frontier = {page for key in frontier for page in predecessors[key]} - lengths.keys()
        length += 1
    return lengths


def with_goal(session: Session, goal: Session) -> Session:
    """The same page, on the way to another goal."""
    successor = copy.copy(session)
    successor._goal = goal.goal
    return successor


def test_from_every_page_it_is_what_a_search_finds(small: Catalogue) -> None:
    titles = [small.product(row).title.lower() for row in range(len(small))]
    queries = [titles[0], titles[6], " ".join(titles)]
    start = Session(small)
    start.reset(0)
    pages, predecessors = explore_pages(start, queries)
    assert len(pages) > 500
    assert {session._page_number for session in pages.values()} == {1, 2}
    lengths = set()
    for index in range(small.goal_count):
        goal = Session(small)
        goal.reset(index)
        best = best_purchases(small, index)
        bought = {
            key: copy_and_step(with_goal(page, goal), BUY)
            for key, page in pages.items()
            if BUY in page.clicks
        }
        scores = {key: session.score.total for key, session in bought.items() if session.score}
        ends = {key for key, score in scores.items() if score == max(scores.values())}
        for key, session in bought.items():
            assert count_remaining_actions(session, best) == (0 if key in ends else None)
        if not {small.row(asin) for asin in best} & {0, 6}:
            continue  # none of the searches above names it
        expected = count_actions(ends, predecessors)
        for key, page in pages.items():
            assert count_remaining_actions(with_goal(page, goal), best) == expected[key], (
                index,
                key,
            )
        lengths |= set(expected.values())
    assert lengths >= {1, 2, 3, 4, 5}


def test_the_title_of_every_product_finds_it(tmp_path: Path) -> None:
    catalogue = open_catalogue(ensure_catalogue(tmp_path))
    for row in range(len(catalogue)):
        rows = catalogue.search(catalogue.product(row).title.lower().split(" "))
        assert rows is not None
        assert row in rows[:10]


def choices(goal: ShoppingGoal) -> list[str]:
    assert isinstance(goal.options, dict)
    return [f"click[{value}]" for value in goal.options.values()]


def test_an_episode_counts_the_actions_that_it_wasted(small: Catalogue) -> None:
    env = registry.make("webshop", data=small.folder, regret=True)
    task = env.tasks("train")[0]
    goal = small.goal(int(task.data))
    right = [f"search[{goal.name.lower()}]", f"click[{goal.asin.lower()}]", *choices(goal), BUY]
    for actions, wasted in (
        (right, [0] * len(right)),
        (
            ["click[description]", *right],
            [1] + [0] * len(right),
        ),  # without effect on the first page
        ([*right[:2], BUY], [0, 0, 2 + 1]),  # the two that led there, and itself
    ):
        env.reset(task)
        results = [env.step(action) for action in actions]
        assert [result.info["regret"] for result in results] == wasted
        assert results[-1].info["won"] == (actions[-1] == BUY and len(actions) > 3)
    plain = registry.make("webshop", data=small.folder)
    plain.reset(task)
    assert "regret" not in plain.step(BUY).info


def test_the_chosen_options_can_be_part_of_the_anchor(small: Catalogue) -> None:
    task = registry.make("webshop", data=small.folder).tasks("train")[0]
    goal = small.goal(int(task.data))
    anchors = {}
    for anchor in ("page", "page+options"):
        env = registry.make("webshop", data=small.folder, anchor=anchor)
        env.reset(task)
        env.step(f"search[{goal.name.lower()}]")
        actions = (f"click[{goal.asin.lower()}]", *choices(goal))
        observations = [env.step(action).observation for action in actions]
        assert len({observation.text for observation in observations}) == 1
        anchors[anchor] = len({observation.anchor for observation in observations})
    assert anchors == {"page": 1, "page+options": 1 + len(goal.options)}
    with pytest.raises(InputError, match="must be one of page, page"):
        registry.make("webshop", data=small.folder, anchor="pages")
