"""The estimates of the catalogue: equal ones once, under names that say when they hold."""

import re
from dataclasses import replace

import numpy as np
import pytest
from ml_collections import ConfigDict

from gigpo_jax.config import default_config, resolve
from gigpo_jax.core.errors import InputError
from gigpo_jax.learner.step_columns import step_columns
from gigpo_jax.rl.algorithms import ALGORITHMS, make_advantages
from gigpo_jax.tools.credit.estimates import (
    STEP_PART,
    estimate_steps,
    given_columns,
    missing_columns,
    own_variant,
    parse_variants,
)
from gigpo_jax.trajectory import Step, Turn


def steps(anchors: list[str]) -> list[Step]:
    """Two episodes of three and two steps, the first one won."""
    empty = np.zeros(1, np.int32)
    found = []
    for anchor, (trajectory, number) in zip(
        anchors, [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)], strict=True
    ):
        reward = 10.0 * ((trajectory, number) == (0, 2))
        turn = Turn(empty, empty, empty, "", "", "", True, None, "", anchor, reward, 0.0, "stop", 0)
        found.append(Step(trajectory, number, 0, turn))
    return found


def test_every_algorithm_is_listed_once_for_each_preset_and_anchor_that_changes_it() -> None:
    config = default_config()
    assert own_variant(resolve(config, trains=False).rl) == {}
    config.rl.algorithm = "repeat_discount"
    config.rl.settings = ConfigDict({"base": "gigpo", "repeat": 0.5})
    rl = resolve(config, trains=False).rl
    anchored = {"coarse": steps(list("aaaaa")), "fine": steps(list("abcad"))}
    texts = ["step_weight=0", "penalty_in=reward", "salt:base=gigpo", "salt:gamma=1:base=gigpo"]
    found = estimate_steps(anchored, rl, parse_variants(texts, rl) | own_variant(rl))
    where = {(label, e.anchor): e for e in found for label in e.labels}
    missing = missing_columns((), rl)
    assert missing["empg"] == ["entropy"]
    assert missing["a2tgpo"] == ["answer_logprob"]
    assert missing["strata"] == ["strategy", "summary"]
    names = {name for e in found for name in e.names}
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
    assert len({e.values.tobytes() for e in found}) == len(found)
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
    own = where["repeat_discount base=gigpo repeat=0.5:paper", "fine"]
    settings = {"gamma": rl.gamma, "step_weight": rl.step_weight, "normalize": rl.normalize}
    expected = make_advantages("repeat_discount", "paper", **settings, base="gigpo", repeat=0.5)(
        step_columns(anchored["fine"], needs=("action",))
    ).total
    np.testing.assert_array_equal(own.values, np.asarray(expected)[:5])


@pytest.mark.parametrize(
    ("label", "name", "base"),
    [("gigpo", "gigpo", {}), ("repeat_discount over gigpo", "repeat_discount", {"base": "gigpo"})],
)
def test_values_are_those_of_the_algorithm(label: str, name: str, base: dict[str, str]) -> None:
    rl = resolve(default_config(), trains=False).rl
    fine = steps(list("abcad"))
    (one,) = [e for e in estimate_steps({"fine": fine}, rl, {}) if f"{label}:paper" in e.labels]
    settings = {"gamma": rl.gamma, "step_weight": rl.step_weight, "normalize": rl.normalize}
    expected = make_advantages(name, "paper", **settings, **base)(
        step_columns(fine, needs=("action",))
    ).total
    np.testing.assert_array_equal(one.values, np.asarray(expected)[:5])


def test_the_text_critic_is_graded_where_a_run_has_one() -> None:
    config = default_config()
    config.rl.algorithm = "text_critic"
    rl = resolve(config, trains=False).rl
    anchored = {"any": steps(list("abcad"))}

    def names(values: dict[str, np.ndarray]) -> set[str]:
        return {name for e in estimate_steps(anchored, rl, {}, values) for name in e.names}

    assert "text_critic" not in names({})
    found = names({"value": np.arange(5, dtype=np.float32)})
    assert "text_critic" in found
    assert {"step_ppo", "turn_ppo"}.isdisjoint(found)  # their critic is another one


def test_progress_is_graded_where_a_run_has_learnt_it() -> None:
    columns = {"value", "tokens", "token_value"}
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
        ("gama=1", "gama='1': no such setting; there is gamma, step_weight, normalize"),
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
        ("repeat_discount:lam=1", "lam='1': no such setting; there is base, repeat, pair, gamma"),
        ("repeat_discount:base=1", "config.rl.settings.base='1': unknown"),
        ("opd:strength=2", "opd: its advantages are of tokens"),
    ],
)
def test_a_bad_variant_is_refused(text: str, reason: str) -> None:
    with pytest.raises(InputError, match="^" + re.escape(f"--variants={text!r}: {reason}")):
        parse_variants([text], resolve(default_config(), trains=False).rl)


def test_continuations_are_graded_where_there_are_forks() -> None:
    rl = resolve(default_config(), trains=False).rl
    whole = steps(list("abcad"))
    assert missing_columns(given_columns(whole), rl)["vineppo"] == ["forked"]
    forked = [replace(step, forked=step.trajectory == 1) for step in whole]
    missing = missing_columns(given_columns(forked), rl)
    assert "vineppo" not in missing
    assert missing["rloo"] == ["episodes without forks"]


def test_strategies_of_several_episodes_are_graded() -> None:
    """Their algorithm reads which episodes have one in common."""
    rl = resolve(default_config(), trains=False).rl
    found = {}
    for shared in (True, False):
        rows = []
        for step in steps(list("abcad")):
            strategy = 0 if shared else step.trajectory
            if step.step == 0 and (step.trajectory == 0 or not shared):
                turn = replace(step.turn, is_summary=True, anchor="summary", reward=0.0)
                rows.append(replace(step, turn=turn, strategy=strategy))
            rows.append(replace(step, summaries=1, strategy=strategy))
        estimates = estimate_steps({"any": rows}, rl, {})
        found[shared] = {name: e.values for e in estimates for name in e.names}
    assert "strata" not in found[False]
    # The only strategy of the task is compared with none, its episodes with each other.
    values = found[True]["strata"]
    assert values[0] == 0.0
    # The last preset is that of statistics over rows: three steps, and two.
    assert 3 * values[1] == pytest.approx(-2 * values[4], abs=1e-5)
    assert values[1] > 0.5
