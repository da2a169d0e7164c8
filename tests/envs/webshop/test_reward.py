"""Rewards: the quirks of the original, worked out by hand."""

import sys

import pytest

from gigpo_jax.core.errors import InputError
from gigpo_jax.envs.webshop.catalogue.goals import ShoppingGoal
from gigpo_jax.envs.webshop.catalogue.sources import Product
from gigpo_jax.envs.webshop.engine.nouns import load_file_tagger, open_tagger, tag_builtin
from gigpo_jax.envs.webshop.engine.reward import (
    COLOURS,
    count_matching_options,
    normalise_colour,
    score_purchase,
)
from gigpo_jax.envs.webshop.engine.text_similarity import token_set_ratio


def _product(**changes):
    fields = {
        "asin": "B1",
        "title": "Red Shoes",
        "category": "c",
        "query": "shoes",
        "product_category": "A › B › C",
        "description": "Very Soft indeed",
        "bullets": ("one", "two halves"),
        "pricing": (10.0,),
        "options": {},
        "attributes": ("non slip",),
        "image": "",
    }
    return Product(**{**fields, **changes})


def _goal(**changes):
    fields = {
        "id": "g",
        "asin": "B1",
        "category": "c",
        "query": "shoes",
        "name": "Red Shoes",
        "product_category": "A › B › C",
        "instruction": "",
        "attributes": ("non slip",),
        "options": (),
        "price_cap": 20.0,
        "weight": 1.0,
    }
    return ShoppingGoal(**{**fields, **changes})


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("non slip", "slip non", 100),
        ("abc", "abd", 67),
        ("é", "é", 0),  # nothing is left of either
        ("CAFÉ latte!", "cafe latte", 95),  # "caf latte" and "cafe latte": 2 x 9 of 19 characters
        ("", "x", 0),
        ("x", "('color', 'x')", 100),
    ],
)
def test_token_set_ratio(first, second, expected):
    assert token_set_ratio(first, second) == expected


def test_colours_are_the_first_substring_in_alphabetical_order():
    assert len(COLOURS) == 102
    assert list(COLOURS) == sorted(COLOURS)
    assert normalise_colour("standard") == "tan"
    assert normalise_colour("rose gold") == "gold"
    assert normalise_colour(("color", "rose gold")) == (
        "color",
        "rose gold",
    )  # a tuple is asked for an element
    assert normalise_colour(("color", "black")) == "black"


def test_a_synthetic_goal_cannot_ask_for_a_hidden_colour():
    assert count_matching_options(["standard"], ["standard"]) == 1
    assert count_matching_options(["standard"], [("size", "standard")]) == 0
    assert count_matching_options(["large"], [("size", "large")]) == 1
    assert count_matching_options([], ["red"]) == 0
    assert (
        count_matching_options(["red", "x"], ["dark red", "ruby red", "y"]) == 1
    )  # dark is first in "dark red"


@pytest.mark.parametrize(
    ("product", "nouns", "goal_nouns", "expected"),
    [
        ({}, ["shoes"], ["shoes"], 1.0),
        ({"query": "x"}, ["shoes"], ["shoes"], 1.0),
        (
            {"query": "x", "product_category": "A › Z"},
            ["a"],
            ["a", "b", "c", "d", "e"],
            0.5,
        ),  # 0.2 is not above 0.2
        ({"query": "x", "product_category": " B ›A"}, ["a"], ["a", "b", "c", "d", "e"], 1.0),
        ({}, ["a"], list("abcdefghijk"), 0.1),
        ({}, ["x"], ["a"], 0.0),
        ({}, ["x"], [], 1.0),
        ({"query": "x", "product_category": "Z"}, ["x"], [], 0.5),
        ({}, ["a"], ["a", "a"], 1.0),  # a set over a list: one half
    ],
)
def test_kind_of_thing(product, nouns, goal_nouns, expected):
    assert (
        score_purchase(
            _product(**product), 5.0, {}, _goal(), nouns=nouns, goal_nouns=goal_nouns
        ).type
        == expected
    )


def test_attributes_are_also_looked_for_in_the_texts():
    goal = _goal(attributes=("non slip", "soft", "halves", "shoes", "missing"), price_cap=9.0)
    score = score_purchase(_product(), 10.0, {}, goal, nouns=["shoes"], goal_nouns=["shoes"])
    assert (score.attributes, score.price, score.total) == (4, False, 4 / 6)


def test_a_price_of_just_the_cap_and_values_of_options_count():
    goal = _goal(options=("large", "black"), price_cap=10.0)

    def score(price, **options):
        bought = score_purchase(
            _product(), price, options, goal, nouns=["shoes"], goal_nouns=["shoes"]
        )
        return bought.options, bought.price, bought.total

    # One attribute, two options and the price are four terms.
    assert score(10.0, size="large") == (1, True, 3 / 4)
    assert score(10.01, size="large") == (1, False, 2 / 4)
    assert score(9.0, size="large", color="black") == (2, True, 1.0)
    assert score(9.0, black="red", large="small") == (0, True, 2 / 4)


def test_taggers(tmp_path, monkeypatch):
    assert tag_builtin("COSYCOST Comfortable Throw Pillow Cover for the Home Office, 2 Pack") == (
        "cosycost",
        "throw",
        "pillow",
        "cover",
        "home",
        "office",
    )
    path = tmp_path / "nouns.json"
    path.write_text('{"Red Shoes": ["footwear"]}')
    assert list(load_file_tagger(path)("Red Shoes")) == ["footwear"]
    assert list(load_file_tagger(path)("Red Hats")) == ["hats"]
    path.write_text('{"Red Shoes": 1}')
    with pytest.raises(InputError, match="title -> list of nouns"):
        open_tagger(path)
    monkeypatch.setitem(sys.modules, "spacy", None)
    with pytest.raises(InputError, match="spaCy is not installed"):
        open_tagger("spacy")
