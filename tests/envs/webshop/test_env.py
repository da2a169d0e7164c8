"""The training environment, its splits and panels, the generator and the expert."""

import json
import subprocess
import sys

import pytest

from gigpo_jax.core.errors import InputError
from gigpo_jax.env_bridge.panels import check_panel, find_panel
from gigpo_jax.env_bridge.types import EnvError, Task
from gigpo_jax.envs import registry
from gigpo_jax.envs.panels import panel_folder
from gigpo_jax.envs.webshop import open_catalogue
from gigpo_jax.envs.webshop.catalogue.sources import find_sources, read_products
from gigpo_jax.envs.webshop.data.generate import ensure_catalogue, write_catalogue
from gigpo_jax.envs.webshop.expert.demonstrator import Demonstrator
from tests.envs.futures import count_equal_anchors

FOLDER = panel_folder("webshop")


@pytest.fixture(scope="module")
def generated():
    return ensure_catalogue()


def test_observations_follow_the_published_wrapper(reference):
    env = registry.make(
        "webshop", data=reference, goals="human", draw_seed=42, nouns=reference / "title_nouns.json"
    )
    task = next(task for task in (*env.tasks("test"), *env.tasks("train")) if task.data == "19")
    first = env.reset(task)
    wish = (
        "i am looking for a non slip and ankle strap flats in multicolor, "
        "and price lower than 60.00 dollars"
    )
    assert first.task == wish
    assert first.text == first.anchor == "'Search'"
    assert first.admissible == ("search[<your query>]", "click[search]")
    result = env.step("search[zzzqqq]")
    assert (
        result.observation.text
        == "'Back to Search' [SEP] 'Page 1 (Total results: 0)' [SEP] 'Next >'"
    )
    assert result.observation.admissible == ("click[back to search]", "click[next >]")
    env.step("search[Saireed Breathable Flats with Carrying Bag, Ankle Strap Waterproof Sandals]")
    plain = env.step("click[b0xpklc9j9]").observation
    chosen = env.step("click[multicolor]").observation
    assert plain.anchor == chosen.anchor  # options are no part of the state
    result = env.step("click[buy now]")
    assert (result.reward, result.done, dict(result.info)) == (
        10.0,
        True,
        {"won": True, "score": 1.0},
    )
    assert result.observation.text.startswith("Thank you for shopping with us! [SEP] ")
    again = env.step("search[x]")
    assert (again.reward, again.done, again.observation) == (0.0, True, result.observation)


def test_the_anchor_does_not_depend_on_the_form_of_the_observation(reference):
    plain, rich = (
        registry.make("webshop", data=reference, observation=form) for form in ("text", "text_rich")
    )
    task = plain.tasks("train")[5]
    assert plain.reset(task).anchor == rich.reset(task).anchor
    for action in ("search[red shoes]", "click[next >]", "click[back to search]"):
        plain_page = plain.step(action).observation
        rich_page = rich.step(action).observation
        assert plain_page.anchor == rich_page.anchor
        assert plain_page.task not in rich_page.text
    assert "[button] Search [button_]" in rich_page.text


def test_an_episode_ends_after_15_steps_and_a_partial_score_earns_nothing(reference):
    env = registry.make("webshop", data=reference)
    task = env.tasks("train")[0]
    env.reset(task)
    results = [env.step("foo") for _ in range(15)]
    assert [result.done for result in results] == [False] * 14 + [True]
    env.reset(task)
    page = env.step("search[red]").observation
    env.step(page.admissible[2])
    result = env.step("click[buy now]")
    assert result.done
    assert result.reward == 0.0
    assert 0.0 <= result.info["score"] < 1.0


def test_mistakes(reference):
    with pytest.raises(InputError, match="observation='html'"):
        registry.make("webshop", data=reference, observation="html")
    with pytest.raises(InputError, match="max_steps=0"):
        registry.make("webshop", data=reference, max_steps=0)
    env = registry.make("webshop", data=reference)
    with pytest.raises(InputError, match="split='valid'"):
        env.tasks("valid")
    with pytest.raises(InputError, match="is not goal 3"):
        env.reset(Task("synthetic-nothing-0", "", "train", "3"))
    with pytest.raises(EnvError, match="reset"):
        env.step("foo")
    env.close()
    env.close()


def test_goals_are_one_list_with_disjoint_splits(generated):
    for kind in ("synthetic", "human"):
        catalogue = open_catalogue(generated, goals=kind)
        goals = [catalogue.goal(index) for index in range(catalogue.goal_count)]
        assert len({goal.id for goal in goals}) == len(goals)
        wants = [
            (goal.asin, goal.instruction.split(", and price")[0], str(goal.options))
            for goal in goals
        ]
        assert len(set(wants)) == len(wants)
        assert catalogue.test_goals == range(500)
        assert catalogue.train_goals == range(500, len(goals))
        redrawn = open_catalogue(generated, goals=kind, seed=1)
        assert [redrawn.goal(index).id for index in range(50)] == [goal.id for goal in goals[:50]]
        assert any(redrawn.goal(index).price_cap != goals[index].price_cap for index in range(50))


def test_the_frozen_panels_are_the_two_splits(generated):
    env = registry.make("webshop", data=generated)
    ids = {
        name: {task.id for task in check_panel(find_panel(name, "webshop", FOLDER), env)}
        for name in ("test", "train")
    }
    assert len(ids["test"]) == 500
    assert not ids["test"] & ids["train"]
    assert ids["train"] == {task.id for task in env.tasks("train")}
    with pytest.raises(InputError, match="panel=test"):
        check_panel(
            find_panel("test", "webshop", FOLDER),
            registry.make("webshop", data=generated, draw_seed=1),
        )


def test_the_compatible_list_keeps_repeats(reference):
    assert open_catalogue(reference, goals="human", draw_seed=7).goal_count == 301
    assert open_catalogue(reference, goals="human").goal_count == 282


def test_generated_files_are_the_same_every_time_and_hold_the_hard_cases(tmp_path):
    for name in ("one", "two"):
        write_catalogue(tmp_path / name, products=600, seed=3)
    write_catalogue(tmp_path / "three", products=600, seed=4)
    first, second, third = (
        (tmp_path / name / "items_shuffle.json").read_bytes() for name in ("one", "two", "three")
    )
    assert first == second
    assert first != third
    products = list(read_products(find_sources(tmp_path / "one").products))
    prices = [product["pricing"] for product in products]
    assert None in prices
    assert "" in prices
    assert any(price and " to " in price for price in prices)
    assert any(product["customization_options"] in (None, {}) for product in products)
    assert any(isinstance(product["small_description"], str) for product in products)
    assert any("" in product["small_description"] for product in products)
    assert any(not product["name"].isascii() for product in products)
    assert any("<" in product["name"] for product in products)
    assert {"nan", "B0TOOLONG000"} <= {product["asin"] for product in products}
    catalogue = open_catalogue(tmp_path / "one")
    assert len(catalogue) == 600
    with pytest.raises(InputError, match="holds items_"):
        write_catalogue(tmp_path / "one", products=5)
    with pytest.raises(InputError, match="products=0"):
        write_catalogue(tmp_path / "four", products=0)


@pytest.mark.parametrize(
    ("kind", "form"), [("synthetic", "text"), ("human", "text"), ("synthetic", "text_rich")]
)
def test_the_expert_wins_nearly_always(generated, kind, form):
    env = registry.make("webshop", data=generated, goals=kind, observation=form)
    won = []
    steps = []
    tasks = env.tasks("test")
    for task in (tasks[index] for index in range(0, 500, 4)):
        observation = env.reset(task)
        expert = Demonstrator(0)
        count = 0
        while True:
            result = env.step(expert.act(observation))
            observation = result.observation
            count += 1
            if result.done:
                break
        won.append(result.info["won"])
        steps.append(count)
    assert sum(won) >= 0.95 * len(won)
    assert sum(steps) / len(steps) < 8


def test_commands(tmp_path):
    program = [sys.executable, "-m", "gigpo_jax", "envs", "webshop", "generate"]
    command = [*program, "--out", str(tmp_path / "c"), "--products", "3"]
    assert subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 0
    again = subprocess.run(command, capture_output=True, timeout=60, check=False, text=True)
    assert again.returncode == 2
    assert "Traceback" not in again.stderr
    assert "RuntimeWarning" not in again.stderr
    assert len(json.loads((tmp_path / "c" / "items_shuffle.json").read_text())) == 6


QUERIES = ("red shoes", "shoes red", "waterproof sandals", "zzzqqq", "item_page", "the red shoes")


def list_shop_actions(observation):
    """Every click, and some searches; words that the index drops find the same products."""
    searches = [f"search[{query}]" for query in QUERIES]
    return [*searches, *(click for click in observation.admissible if click.startswith("click"))]


@pytest.mark.parametrize("form", ["text", "text_rich"])
def test_equal_states_have_equal_futures(reference, form):
    env = registry.make(
        "webshop", data=reference, anchor="state", observation=form, max_steps=100, regret=True
    )
    pairs = 0
    for number, task in enumerate(env.tasks("train")[:6]):
        pairs += count_equal_anchors(
            env, task, episodes=12, steps=12, seed=number, list_actions=list_shop_actions
        )
    assert pairs > 100


def test_the_state_is_the_page_with_all_that_it_hides(reference):
    env = registry.make("webshop", data=reference, anchor="state")
    task = env.tasks("train")[0]
    title = "Saireed Breathable Flats with Carrying Bag, Ankle Strap Waterproof Sandals"

    def play(*actions):
        env.reset(task)
        return [env.step(action).observation.anchor for action in actions][-1]

    item = (f"search[{title}]", "click[b0xpklc9j9]")
    assert play(*item) == play(*item, "click[description]", "click[< prev]") == play(*item, "jump")
    assert play(*item) != play(*item, "click[multicolor]")
    other_results = ("search[waterproof sandals]", *item[1:])
    assert play(*other_results) != play(*item)  # < Prev leads to other results
    assert play("search[red shoes]") == play("search[red  shoes]")
    # A click looks for the name of the page in the whole address.
    hidden_name = (f"search[{title} zsearch_resultsz]", *item[1:])
    assert play(*hidden_name, "click[< prev]") != play(*item, "click[< prev]")
    assert play(*hidden_name) != play(*item)
    assert play(*item, "click[back to search]") == env.reset(task).anchor
