"""Every character of the episodes that the original engine played, and its draws."""

import gzip
import json
from html.parser import HTMLParser

import pytest

from gigpo_jax.envs.webshop import Session, open_catalogue
from tests.envs.webshop.conftest import DATA

RUNS = json.loads(gzip.decompress((DATA / "transcripts.json.gz").read_bytes()))["runs"]


class _VisibleText(HTMLParser):
    """The text nodes of a page's HTML, written from the rules, without our pages."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.nodes = []
        self._text = ""
        self._hidden = 0
        self._preformatted = 0

    def _flush(self):
        text = self._text
        self._text = ""
        if (
            text
            and not self._hidden
            and not (text.strip(" \n\t\f\r") == "" and "\n" in text and not self._preformatted)
        ):
            self.nodes.append(text.strip())

    def handle_starttag(self, tag, attrs):
        self._flush()
        self._hidden += tag in ("head", "script", "style", "title")
        self._preformatted += tag == "pre"

    def handle_endtag(self, tag):
        self._flush()
        self._hidden -= tag in ("head", "script", "style", "title")
        self._preformatted -= tag == "pre"

    def handle_comment(self, data):
        self._flush()

    def handle_data(self, data):
        self._text += data


def _as_text(html):
    reader = _VisibleText()
    reader.feed(html.partition("<html>")[2])
    reader.close()
    return " [SEP] ".join(reader.nodes)


def _catalogue(run):
    kind = "human" if run["human_goals"] else "synthetic"
    return open_catalogue(
        DATA, goals=kind, draw_seed=run["seed_before_ctor"], nouns=DATA / "title_nouns.json"
    )


@pytest.mark.parametrize(
    "run", RUNS, ids=lambda run: f"{run['observation_mode']}-{run['seed_before_ctor']}"
)
def test_prices_and_goals_are_those_of_the_original(run):
    catalogue = _catalogue(run)
    assert {asin: catalogue.price(catalogue.row(asin)) for asin in run["product_prices"]} == run[
        "product_prices"
    ]
    assert catalogue.goal_count == len(run["goals"])
    assert float(catalogue._cumulative_weights[-1]) == run["cum_weights_last"]
    for index, expected in enumerate(run["goals"]):
        goal = catalogue.goal(index)
        options = goal.options if isinstance(goal.options, dict) else list(goal.options)
        assert {
            "asin": goal.asin,
            "category": goal.category,
            "query": goal.query,
            "name": goal.name,
            "product_category": goal.product_category,
            "instruction_text": goal.instruction,
            "attributes": list(goal.attributes),
            "price_upper": goal.price_cap,
            "goal_options": options,
            "weight": goal.weight,
        } == expected


@pytest.mark.parametrize(
    "run", RUNS, ids=lambda run: f"{run['observation_mode']}-{run['seed_before_ctor']}"
)
def test_episodes_are_those_of_the_original(run):
    html = run["observation_mode"] == "html"  # compared as the text that its HTML shows
    session = Session(
        _catalogue(run),
        observation="text" if html else run["observation_mode"],
        show_attributes=run["show_attrs"],
    )
    for number, episode in enumerate(run["episodes"]):
        page = session.reset(episode["goal_idx"])
        expected = episode["reset_obs"]
        assert page.text == (_as_text(expected) if html else expected), number
        assert page.available == episode["reset_available"]
        for step in episode["steps"]:
            page = session.step(step["action"])
            place = (number, step["action"])
            assert page.text == (_as_text(step["obs"]) if html else step["obs"]), place
            assert page.available == step["available"], place
            assert (page.reward, page.done, session.url) == (
                step["reward"],
                step["done"],
                step["url"],
            ), place
        details = episode["verbose_info"]
        if details is not None:
            score = session.score
            assert (
                score.type,
                score.query_match,
                score.category_match,
                score.title_score,
                score.price,
            ) == tuple(
                details[key]
                for key in ("r_type", "query_match", "category_match", "title_score", "r_price")
            )
            assert score.attributes / len(session.goal.attributes) == details["r_att"]
            assert (
                not session.goal.options
                or score.options / len(session.goal.options) == details["r_option"]
            )
