"""The prompt of tiny models: a page in the words that bear on the task."""

from dataclasses import replace

import pytest

from gigpo_jax.env_bridge.prompt_building import build_prompt
from gigpo_jax.env_bridge.prompts import Event, History, PromptInput
from gigpo_jax.envs import registry
from gigpo_jax.envs.webshop.data.generate import ensure_catalogue
from gigpo_jax.envs.webshop.prompt import shorten_task, write_compact_prompt

TASK = (
    "Find me non slip, open toe flat sandals with color: red, and size: 8.5 wide, "
    "and price lower than 40.00 dollars"
)
INDEX = PromptInput(TASK, "", (), 0, "'Search'", ("search[<your query>]", "click[search]"))
RESULTS = replace(
    INDEX,
    history=(Event("'Search'", "search[non slip sandals]"),),
    steps=1,
    observation=(
        "'Back to Search' [SEP] 'Page 1 (Total results: 2)' [SEP] 'Next >' [SEP] 'B0AAAAAAA1' "
        "[SEP] 'Umbra Cozy Flat Sandal, Non Slip for Travel' [SEP] '$30.01 to $44.0' [SEP] "
        "'B0AAAAAAA2' [SEP] 'Red Wig' [SEP] '$40.0'"
    ),
    admissible=("click[back to search]", "click[next >]", "click[b0aaaaaaa1]", "click[b0aaaaaaa2]"),
)
ITEM = replace(
    RESULTS,
    history=(*RESULTS.history, Event("..", "click[b0aaaaaaa1]"), Event("..", "click[red]")),
    steps=3,
    observation=(
        "'Back to Search' [SEP] '< Prev' [SEP] 'color' [SEP] 'red' [SEP] 'a1b2c3d4e5' [SEP] "
        "'Umbra Cozy Flat Sandal, Non Slip' [SEP] 'Price: $30.01 to $44.0' [SEP] 'Rating: N.A.' "
        "[SEP] 'Description' [SEP] 'Buy Now'"
    ),
    admissible=(
        *(
            "click[back to search]",
            "click[< prev]",
            "click[description]",
            "click[reviews]",
            "click[buy now]",
        ),
        *("click[red]", "click[a1b2c3d4e5]"),
    ),
)
SHORT = "non slip open toe flat sandals with color red and size 8.5 wide under 40"


@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        (INDEX, f"{SHORT} now"),
        (
            RESULTS,
            f"{SHORT} did search now b0aaaaaaa1 flat sandal non slip 40 ; b0aaaaaaa2 red 40 ;",
        ),
        (
            ITEM,
            f"{SHORT} did search ; b0aaaaaaa1 ; red now item flat sandal non slip 40 "
            "can < prev ; description ; buy now ; red ; a1b2c3d4e5",
        ),
        (
            replace(
                RESULTS,
                observation=RESULTS.observation.replace(
                    "[SEP] 'Next", "[SEP] '< Prev' [SEP] 'Next"
                ),
            ),
            f"{SHORT} did search now b0aaaaaaa1 flat sandal non slip 40 ; b0aaaaaaa2 red 40 ;",
        ),
        (
            replace(
                ITEM,
                history=(),
                observation="'Back to Search' [SEP] '< Prev' [SEP] 'Red, open to wide feet.'",
            ),
            f"{SHORT} now red open wide can < prev ; description ; buy now ; red ; a1b2c3d4e5",
        ),
        (replace(RESULTS, observation="", admissible=None), f"{SHORT} did search now"),
    ],
    ids=("index", "results", "item", "second page", "sub-page", "nothing"),
)
def test_what_is_shown_of_each_page(inputs, text):
    assert write_compact_prompt(inputs) == text


def test_of_long_lists_the_first_offers_are_shown():
    offers = " [SEP] ".join(f"'B0AAAAAAA{n}' [SEP] 'Sandals' [SEP] '$5.0'" for n in range(9))
    prompt = write_compact_prompt(
        replace(RESULTS, observation=f"'Page 2 (Total results: 50)' [SEP] 'Next >' [SEP] {offers}")
    )
    assert prompt.endswith(" now " + " ".join(f"b0aaaaaaa{n} sandals 10 ;" for n in range(5)))


@pytest.mark.parametrize(
    ("price", "tens"),
    [("$0.01", 10), ("$10.0", 10), ("$10.01", 20), ("$29.99 to $50.0", 30), ("$1234.5", 1240)],
)
def test_rounding_keeps_what_is_within_the_cap(price, tens):
    page = f"'Page 1 (Total results: 1)' [SEP] 'B0AAAAAAA1' [SEP] 'x' [SEP] '{price}'"
    prompt = write_compact_prompt(replace(RESULTS, observation=page))
    assert prompt.endswith(f" now b0aaaaaaa1 {tens} ;")


def test_requests_keep_their_words():
    assert (
        shorten_task("i need a lamp, in white | black (pack of 2).")
        == "lamp in white | black (pack of 2)."
    )
    assert shorten_task("") == ""


def test_both_forms_of_observation_make_the_same_prompts():
    plain, rich = (
        registry.make("webshop", data=ensure_catalogue(), observation=form)
        for form in ("text", "text_rich")
    )
    for task in plain.tasks("train")[:8]:
        plain_page = plain.reset(task)
        rich_page = rich.reset(task)
        expert = registry.make_expert("webshop", 0)
        history = History(8)
        for _ in range(6):
            prompts = [
                build_prompt(write_compact_prompt, page, history, encode=str.split, limit=112)
                for page in (plain_page, rich_page)
            ]
            assert prompts[0].text == prompts[1].text
            action = expert.act(plain_page)
            history.add("", action)
            plain_page = plain.step(action).observation
            rich_page = rich.step(action).observation
