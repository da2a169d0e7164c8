"""The estimates of the catalogue: equal ones once, under names that say when they hold."""

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from ml_collections import ConfigDict

from gigpo_jax.config import default_config, resolve
from gigpo_jax.core.errors import InputError
from gigpo_jax.learner.signals.saved import gradable_columns
from gigpo_jax.learner.step_columns import step_columns
from gigpo_jax.methods.strata.episode_part import STRATEGY_NUMBER
from gigpo_jax.models.text.word_tokenizer import word_tokenizer
from gigpo_jax.policy import Policy
from gigpo_jax.rl.algorithms import ALGORITHMS, make_advantages
from gigpo_jax.tools.credit.estimates import (
    STEP_PART,
    Estimate,
    estimate_steps,
    given_columns,
    missing_columns,
    own_variant,
    parse_variants,
)
from gigpo_jax.trajectory import FORKS, Past, Step, Turn
from tests.models.shapes import SMALL
from tests.turns import make_step


def steps(anchors: list[str]) -> list[Step]:
    """Two episodes of three and two steps, the first one won."""
    empty = np.zeros(1, np.int32)
    found = []
    for anchor, (trajectory, number) in zip(
        anchors, [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)], strict=True
    ):
        reward = 10.0 * ((trajectory, number) == (0, 2))
        turn = Turn(empty, empty, empty, "", "", "", True, None, "", anchor, reward, 0.0, "stop", 0)
        found.append(make_step(trajectory, number, turn))
    return found


ANCHORED = {"coarse": steps(list("aaaaa")), "fine": steps(list("abcad"))}


@pytest.fixture(scope="module")
def rl() -> ConfigDict:
    """Section `rl` of a wrapper with a setting of its own."""
    config = default_config()
    config.rl.algorithm = "repeat_discount"
    config.rl.settings = ConfigDict({"base": "gigpo", "repeat": 0.5})
    return resolve(config, trains=False).rl


@pytest.fixture(scope="module")
def estimates(rl: ConfigDict) -> list[Estimate]:
    """Estimates of the catalogue, of the run's own algorithm and of variants.

    The critic is on the host.
    """
    texts = ["step_weight=0", "penalty_in=reward", "salt:base=gigpo", "salt:gamma=1:base=gigpo"]
    variants = parse_variants(texts, rl) | own_variant(rl)
    return estimate_steps(ANCHORED, rl, variants, {"value": np.arange(5, dtype=np.float32)})


def test_every_algorithm_is_listed_once_for_each_preset_and_anchor_that_changes_it(
    rl: ConfigDict, estimates: list[Estimate]
) -> None:
    where = {(label, e.anchor): e for e in estimates for label in e.labels}
    missing = missing_columns({"value"}, rl)
    assert missing["empg"] == ["entropy"]
    assert missing["a2tgpo"] == ["answer_logprob"]
    assert missing["strata"] == ["strategy", "summary"]
    assert "text_critic" not in missing
    names = {name for e in estimates for name in e.names}
    wrapped = {
        f"{name} over gigpo" for name in ("salt", "repeat_discount", "response_weight", "serl")
    }
    variants = {
        "gigpo step_weight=0",
        "gigpo penalty_in=reward",
        "salt base=gigpo",
        "salt gamma=1 base=gigpo",
        "repeat_discount base=gigpo repeat=0.5",
    }
    assert names == ({*ALGORITHMS} - {*missing}) | {STEP_PART} | wrapped | variants
    assert len({e.values.tobytes() for e in estimates}) == len(estimates)
    rloo = where["rloo", "any"]  # neither the preset nor the anchor matters to it
    assert rloo.values[0] == pytest.approx(10.0)
    assert (
        where["grpo:paper", "any"]
        is where["dapo:paper", "any"]
        is where["gigpo step_weight=0:paper", "any"]
    )
    assert where["grpo:paper", "any"] is not where["grpo:verl_agent", "any"]
    assert where["gigpo:paper", "coarse"] is where["gigpo penalty_in=reward:paper", "coarse"]
    assert where["gigpo:paper", "fine"] is not where["gigpo:paper", "coarse"]
    assert where["salt base=gigpo:paper", "fine"] is where["salt over gigpo:paper", "fine"]


def test_an_algorithm_of_the_catalogue_is_no_variant() -> None:
    assert own_variant(resolve(default_config(), trains=False).rl) == {}


@pytest.mark.parametrize(
    ("label", "name", "settings"),
    [
        ("gigpo", "gigpo", {}),
        ("repeat_discount over gigpo", "repeat_discount", {"base": "gigpo"}),
        (
            "repeat_discount base=gigpo repeat=0.5",
            "repeat_discount",
            {"base": "gigpo", "repeat": 0.5},
        ),
    ],
)
def test_values_are_those_of_the_algorithm(
    rl: ConfigDict, estimates: list[Estimate], label: str, name: str, settings: dict[str, Any]
) -> None:
    (one,) = [e for e in estimates if e.anchor == "fine" and f"{label}:paper" in e.labels]
    common = {"gamma": rl.gamma, "step_weight": rl.step_weight, "normalize": rl.normalize}
    expected = make_advantages(name, "paper", **common, **settings)(
        step_columns(ANCHORED["fine"], needs=("action",))
    ).total
    np.testing.assert_array_equal(one.values, np.asarray(expected)[:5])


def test_the_text_critic_is_graded_where_a_run_has_one() -> None:
    config = default_config()
    config.rl.algorithm = "text_critic"
    rl = resolve(config, trains=False).rl
    assert "text_critic" in missing_columns((), rl)
    missing = missing_columns({"value"}, rl)
    assert "text_critic" not in missing
    assert missing.keys() >= {"step_ppo", "turn_ppo"}  # their critic is another one


def test_progress_is_graded_where_a_run_has_learnt_it() -> None:
    columns = {"value", "tokens", "token_value", "executable"}
    for name, graded in (("spa_rl", {"spa_rl"}), ("ppo", {"ppo", "bilevel", "step_ppo"})):
        config = default_config()
        config.rl.algorithm = name
        missing = missing_columns(columns, resolve(config, trains=False).rl)
        names = {"spa_rl", "ppo", "bilevel", "step_ppo"}
        # Values of returns are no progress, and progress is no return.
        assert names - missing.keys() == graded


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("gama=1", "gama='1': no such setting; choose from gamma, step_weight, normalize"),
        ("gamma=much", "config.rl.gamma='much': must be of type float"),
        ("gamma=2", "config.rl.gamma=2.0: must be from 0 to 1"),
        ("gamma=1:", "'' is not KEY=VALUE, such as gamma=1"),
        ("gamma=1:gamma=0.9", "gamma='0.9': is there twice"),
        ("step_weight=1e999", "config.rl.step_weight=inf: must be finite"),
        ("penalty_in=nowhere", "penalty_in='nowhere': must be one of reward, row"),
        ("gamma", "config.rl.algorithm='gamma': unknown"),
        ("", "config.rl.algorithm='': unknown"),
        ("gigpo", "gigpo: is graded with its defaults anyway"),
        ("gigpo:gamma", "'gamma' is not KEY=VALUE"),
        ("no_module:NAME:gamma=1", "config.rl.algorithm: cannot load no_module:NAME"),
        ("graph_values:lam=2", "config.rl.settings.lam=2.0: must be from 0 to 1"),
        ("graph_values:step_weight=0", "step_weight=0.0: the algorithm has 1.0"),
        ("graph_values:truncation=ignore:gamma=1", "config.rl.settings.truncation='ignore': a"),
        (
            "repeat_discount:lam=1",
            "lam='1': no such setting; choose from base, repeat, gamma",
        ),
        ("repeat_discount:base=1", "config.rl.settings.base='1': unknown"),
        ("opd:outcome=2", "opd: its advantages are of tokens"),
    ],
)
def test_a_bad_variant_is_refused(text: str, reason: str) -> None:
    with pytest.raises(InputError, match="^" + re.escape(f"--variants={text!r}: {reason}")):
        parse_variants([text], resolve(default_config(), trains=False).rl)


def test_continuations_are_graded_where_there_are_forks() -> None:
    rl = resolve(default_config(), trains=False).rl
    whole = steps(list("abcad"))
    assert missing_columns(given_columns(whole), rl)["vineppo"] == ["forked"]
    for step in whole[3:]:
        step.episode.past = Past(("look",), source=FORKS)
    missing = missing_columns(given_columns(whole), rl)
    assert "vineppo" not in missing
    assert missing["rloo"] == ["episodes without forks"]


@pytest.mark.parametrize("shared", [True, False])
def test_strategies_of_several_episodes_are_graded(shared: bool) -> None:
    """Their algorithm reads which episodes have one in common."""
    config = resolve(default_config(), trains=False)
    policy = Policy(SMALL["mha_tied"], None, word_tokenizer(["look"]))
    rows = []
    for step in ANCHORED["fine"]:
        number = 0 if shared else step.trajectory
        turn = replace(step.turn, extra={STRATEGY_NUMBER: number})
        if step.step == 0 and (step.trajectory == 0 or not shared):
            summary = replace(turn, is_text=True, anchor="summary", reward=0.0)
            rows.append(replace(step, turn=summary))
        rows.append(replace(step, turn=turn, texts=1))
    columns = gradable_columns(config, policy, rows) | given_columns(rows)
    assert ("strata" not in missing_columns(columns, config.rl)) is shared
