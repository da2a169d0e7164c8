"""The original's rules at their edges, beyond the reference episodes; nothing raises."""

import json
import re
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gigpo_jax.core.errors import InputError
from gigpo_jax.envs.webshop import Session, open_catalogue
from gigpo_jax.envs.webshop.engine import pages
from gigpo_jax.envs.webshop.engine.session import split_brackets


def _edit(folder, change):
    path = folder / "items_shuffle_1000.json"
    products = json.loads(path.read_text())
    change(products)
    path.write_text(json.dumps(products))
    return open_catalogue(folder, goals="human", draw_seed=1)


def _values(*values):
    return [{"value": value} for value in values]


@pytest.fixture
def shop(own_copy):
    """The first product has strange options and is found by "zebra"."""

    def change(products):
        products[0]["name"] = "zebra"
        products[0]["customization_options"] = {
            "Color": _values("Black", "café", "features", "say \"hi\" & 'bye'", "", "a/b"),
            "Pattern": _values("black", "search", "buy nothing"),
            "Gone": None,
            " ": _values("\n", "next >"),
        }
        products[0]["small_description"] = ["", "  ", "x\ny", " \n"]
        products[0]["full_description"] = " \n "

    return _edit(own_copy, change)


@pytest.fixture(scope="module")
def synthetic(reference):
    return open_catalogue(reference, goals="synthetic")


def _open(session, search="search[zebra]"):
    session.reset(0)
    page = session.step(search)
    return session.step(f"click[{page.available['clickables'][2]}]")


def test_equal_values_are_one_place_and_choose_the_last_option(shop):
    session = Session(shop)
    page = _open(session)
    clickables = page.available["clickables"]
    assert clickables == [
        *(
            "back to search",
            "< prev",
            "description",
            "features",
            "reviews",
            "buy now",
            "black",
            "café",
        ),
        *("say \"hi\" & 'bye'", "", "a | b", "search", "buy nothing", "next >"),
    ]
    session.step("click[BLACK]")
    assert session.options == {"pattern": "black"}
    session.step("click[search]")  # never followed
    session.step("click[next >]")  # on an item this is but a value
    assert session.options == {"pattern": "black", " ": "next >"}
    assert session.place == "item"
    session.step("click[features]")
    assert session.place == "sub"  # the button wins over the option of the same text
    page = session.step("click[buy now]")
    assert session.place == "sub"
    assert not page.done


def test_blank_nodes(shop):
    session = Session(shop)
    page = _open(session)
    head = page.text.split(" [SEP] ")
    assert head[4:16] == [
        *(
            "color",
            "black",
            "café",
            "features",
            "say \"hi\" & 'bye'",
            "a | b",
            "pattern",
            "black",
            "search",
        ),
        *(
            "buy nothing",
            "",
            "next >",
        ),  # the option whose name is a blank; its first value is stripped to nothing
    ]
    assert session.step("click[features]").text.split(" [SEP] ")[4:] == ["", "", "x\ny"]
    session.step("click[< prev]")
    assert session.step("click[description]").text.endswith("Back to Search [SEP] < Prev")


def test_what_counts_as_chosen_is_what_the_address_shows(shop):
    session = Session(shop, observation="text_rich")
    _open(session)
    assert "[clicked button]" not in session.step("click[café]").text  # the address says caf\u00e9
    page = session.step("click[black]")
    assert page.text.startswith("You have clicked black.\nYou have clicked black.\n")
    page = _open(session, 'search[zebra "café"]')
    assert page.text.startswith("You have clicked café.\n")  # it stands in the search words


def test_opened_products_are_marked_until_the_index_page(shop):
    session = Session(shop, observation="text_rich")
    _open(session)
    page = session.step("click[< prev]")
    assert "\n[clicked button] B0B8R738M6 [clicked button_]" in page.text
    session.step("search[pillow]")
    assert "[clicked button]" in session.step("search[zebra]").text
    session.step("click[back to search]")
    assert "[clicked button]" not in session.step("search[zebra]").text


def test_words_of_an_address_in_a_search_lead_astray(shop):
    session = Session(shop)
    _open(session, "search[zebra search_results]")
    page = session.step("click[< prev]")  # one page back from the first
    assert "Page 0 (Total results: 1)" in page.text
    assert page.available["clickables"] == ["back to search", "next >"]
    page = session.step("click[next >]")
    assert "Page 1" in page.text
    _open(session, "search[zebra item_page]")
    session.step("click[description]")
    session.step("click[< prev]")
    assert session.place == "results"


def test_options_go_with_the_results_but_not_with_a_sub_page(shop):
    session = Session(shop)
    _open(session)
    session.step("click[black]")
    session.step("click[description]")
    session.step("click[< prev]")
    assert session.options == {"pattern": "black"}
    session.step("click[< prev]")
    assert session.options == {}


def test_searches_by_field(shop):
    session = Session(shop)
    session.reset(0)
    assert "(Total results: 50)" in session.step("search[pillow red]").text
    everything = [shop.product(row) for row in range(len(shop))]
    beauty = [product for product in everything if product.category == "beauty"]
    page = session.step("search[<c> beauty and more]")
    assert f"(Total results: {len(beauty)})" in page.text  # not cut at 50
    assert page.available["clickables"][2:] == [product.asin.lower() for product in beauty[:10]]
    dried = sum(product.query == "dried fruits" for product in everything)
    assert f"(Total results: {dried})" in session.step("search[<q> Dried Fruits ]").text
    empty_page = session.step("search[<c> nothing]").text
    assert "(Total results: 0)" in empty_page
    for action in (
        "search[<r>]",
        "search[<a> x]",
        "search[<c>]",
        "search[]",
        "Search[x]",
        "search [x]",
    ):
        assert session.step(action).text == empty_page, action


def test_searches_that_share_an_address_do_not_share_results(shop):
    session = Session(shop)
    session.reset(0)
    zebra_page = session.step("search[zebra+zzz]").text
    assert session.url.endswith("/zebra+zzz/1")
    session.step("search[pillow zzz]")
    pillow_page = session.step("search[pillow+zzz]").text
    assert session.step("search[zebra zzz]").text == zebra_page  # both are two words to the engine
    assert session.step("search[pillow zzz]").text == pillow_page
    assert "(Total results: 0)" in session.step("search[zebra_zzz]").text


def test_the_end_is_not_the_end(shop):
    session = Session(shop)
    _open(session)
    session.step("click[say \"hi\" & 'bye']")
    page = session.step("click[buy now]")
    assert page.done
    assert page.available == {"has_search_bar": False, "clickables": []}
    assert '{"color": "say \\"hi\\" \\u0026 \\u0027bye\\u0027"} [SEP] attrs' in page.text
    assert session.step("click[buy now]").text == page.text
    assert not session.step("click[back to search]").done
    assert "Page 1" in session.step("search[zebra]").text


def test_goals_that_do_not_exist(shop):
    session = Session(shop)
    for index in (-1, shop.goal_count, 10**9, 1.5, True):
        with pytest.raises(
            InputError, match=f"goal={index}: the list has goals 0 to {shop.goal_count - 1}"
        ):
            session.reset(index)
    with pytest.raises(RuntimeError, match="reset"):
        session.step("search[x]")
    with pytest.raises(InputError, match="observation='html'"):
        Session(shop, observation="html")


def test_goals_are_drawn_by_weight(shop):
    first = Session(shop, seed=5)
    second = Session(shop, seed=5)
    assert [first.reset().text for _ in range(5)] == [second.reset().text for _ in range(5)]


_WORDS = st.sampled_from(["<c>", "<q>", "<r> x", "buy now", "search_results", "item_page"])
_ACTION = st.one_of(
    st.text(max_size=30),
    st.builds(
        "{}[{}]".format,
        st.sampled_from(["search", "click", "CLICK"]),
        st.text(max_size=20) | _WORDS,
    ),
    st.integers(0, 40),  # one of the clickables
)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(_ACTION, max_size=25), st.sampled_from(["text", "text_rich"]), st.booleans())
def test_no_action_raises(synthetic, actions, observation, attributes):
    session = Session(synthetic, observation=observation, show_attributes=attributes)
    page = session.reset(3)
    for action in actions:
        if isinstance(action, int):
            clickables = page.available["clickables"] or ["search"]
            action = f"click[{clickables[action % len(clickables)]}]"
        page = session.step(action)
        assert isinstance(page.text, str)
        assert 0.0 <= page.reward <= 1.0
        assert len(set(page.available["clickables"])) == len(page.available["clickables"])


HARD = ("x" * 100_000, "red " * 25_000, "\x00\x1b[31m\x7f", "w%d " * 2000, "\ud800" * 9, "]" * 99)


@pytest.mark.parametrize("text", HARD, ids=range(len(HARD)))
def test_hard_searches(synthetic, text):
    session = Session(synthetic)
    session.reset(0)
    assert isinstance(session.step(f"search[{text}]").text, str)


def test_an_option_that_vanished_does_nothing(shop):
    session = Session(shop)
    item = _open(session)
    assert "black" in item.available["clickables"]
    results = session.step("click[< prev]")
    assert session.step("click[black]") == results
    sub = (
        session.step(f"click[{results.available['clickables'][2]}]"),
        session.step("click[description]"),
    )[1]
    assert session.step("click[black]") == sub
    assert session.options == {}


def test_repeated_searches_are_remembered_and_the_oldest_forgotten(own_copy, monkeypatch):
    catalogue = open_catalogue(own_copy)
    asked = []
    search = catalogue._index.search
    monkeypatch.setattr(
        catalogue._index, "search", lambda query: asked.append(query) or search(query)
    )
    first = catalogue.search(["red", "shoes"])
    for number in range(511):
        catalogue.search([f"lamp{number}"])
    assert catalogue.search(["red", "shoes"]) is first
    assert asked.count("red shoes") == 1
    for number in range(512):
        catalogue.search([f"chair{number}"])
    assert catalogue.search(["red", "shoes"]).tolist() == first.tolist()
    assert asked.count("red shoes") == 2


def test_visible_nodes():
    nodes = [("text", ""), ("text", " \t"), ("text", "\n "), ("text", "\x0b"), ("button", " B ")]
    assert pages.visible_nodes(nodes) == [("text", " "), ("text", "\x0b"), ("button", " B ")]
    assert pages.plain_text(nodes) == " [SEP]  [SEP] B"


@given(st.text("a[]\nB", max_size=12))
def test_actions_are_split_as_by_the_originals_expression(action):
    match = re.match(r"(.+)\[(.+)\]", action)
    assert split_brackets(action) == ((match[1], match[2].lower()) if match else ("", ""))


@pytest.mark.parametrize(
    "action", ["click[" * 160_000, "click[" * 160_000 + "]", "a[" + "]" * 10**6 + "\n"]
)
def test_actions_are_split_in_linear_time(action):
    started = time.process_time()
    split_brackets(action)
    assert time.process_time() - started < 1
