"""Intervals and summaries against numbers worked out elsewhere."""

import pytest

from gigpo_jax.evaluate import Outcome, summarise, table
from gigpo_jax.intervals import mean_interval, wilson_interval


def test_wilson_interval_matches_published_values():
    # Newcombe 1998, table I, method 3 (score, no continuity correction): 81/263, 15/148, 0/20, 1/29.
    for successes, trials, low, high in [
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ]:
        assert wilson_interval(successes, trials) == pytest.approx((low, high), abs=5e-5)
    assert wilson_interval(0, 0) == (0.0, 1.0)


def test_mean_interval():
    # Standard deviation 1 over 4 values: half width 1.96 / 2.
    values = [0.0, 0.0, 3**0.5, 3**0.5]
    low, high = mean_interval(values)
    assert high - low == pytest.approx(1.96, abs=1e-3)
    assert (low + high) / 2 == pytest.approx(3**0.5 / 2)


def episode(kind: str, won: bool, aborted: bool = False) -> Outcome:
    return Outcome(kind, won, float(won), 0, aborted)


def test_aborted_episodes_are_counted_and_left_out():
    result = summarise(
        [episode("heat", True), episode("heat", False), episode("cool", True), episode("cool", False, True)]
    )
    assert result["all"]["episodes"] == 3
    assert result["all"]["aborted"] == 1
    assert result["all"]["success_rate"] == pytest.approx(2 / 3)
    assert result["cool"]["success_rate"] == 1.0
    assert list(result) == ["all", "cool", "heat"]
    assert "| greedy | heat | 1" not in table({"greedy": result})
    assert "| greedy | heat | 2 | 50.0 | " in table({"greedy": result})
    assert table({"greedy": result}).endswith("greedy: 1 episodes were aborted and left out (0 policy-dependent)")
    lost = Outcome("heat", False, 0.0, 0, aborted=True, policy_dependent=True)
    result = summarise([episode("heat", True), lost])
    assert (result["all"]["aborted_policy_dependent"], result["heat"]["aborted_policy_dependent"]) == (1, 1)
    assert table({"greedy": result}).endswith("(1 policy-dependent)")


def test_the_unweighted_mean_of_the_types_counts_each_type_once():
    played = [episode("nq", True)] * 9 + [episode("nq", False)] + [episode("hotpotqa", False)] * 2
    result = summarise([*played, episode("lost", True, aborted=True)])
    assert result["all"]["success_rate"] == pytest.approx(9 / 12)
    assert result["all"]["type_average"] == pytest.approx((0.9 + 0.0) / 2)
    assert "| greedy | unweighted mean of the types | | 45.0 |" in table({"greedy": result})
    assert summarise([episode("", True)])["all"]["type_average"] == 1.0
