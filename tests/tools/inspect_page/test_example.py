"""The step that a page shows first."""

from typing import Any

from gigpo_jax.tools.inspect.example import find_example


def make_step(action: str, returns: float, **changes: Any) -> dict[str, Any]:
    """A step in state 7, with a step advantage of the sign of its return less 5."""
    step = {
        "group": 7,
        "action": action,
        "return": returns,
        "step": returns - 5,
        "total": returns - 5,
        "valid": True,
        "oracle": None,
        "regret": None,
    }
    return step | changes


def make_episodes(*steps: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"aborted": False, "steps": [step]} for step in steps]


def test_an_action_that_won_among_others_that_lost_is_an_example() -> None:
    episodes = make_episodes(
        make_step("left", 0.0), make_step("right", 10.0), make_step("left", 0.0)
    )
    example = find_example(episodes)
    assert example is not None
    assert (example["episode"], example["step"]) == (1, 0)
    # With a second success of the action it is a better one; with a failure of it a worse one.
    better = find_example([*episodes, *make_episodes(make_step("right", 10.0))])
    worse = find_example([*episodes, *make_episodes(make_step("right", 0.0))])
    assert better is not None
    assert worse is not None
    assert better["score"] > example["score"] > worse["score"]


def test_credit_that_a_measurement_contradicts_is_no_example() -> None:
    for changes in (
        {"oracle": (-2.0, 0.5)},
        {"oracle": (2.0, 1.5)},
        {"regret": 1.0},
        {"total": -1.0},
        {"valid": False},
        {"group": None},
    ):
        good = make_step("right", 10.0, **changes)
        bad = make_step("left", 0.0, oracle=(2.0, 0.5))
        assert find_example(make_episodes(good, bad)) is None
    measured = make_step("right", 10.0, oracle=(2.0, 0.5), regret=0.0)
    assert find_example(make_episodes(measured, make_step("left", 0.0))) is not None


def test_where_all_do_the_same_there_is_no_example() -> None:
    same = make_episodes(make_step("left", 10.0), make_step("left", 0.0))
    assert find_example(same) is None
    assert find_example([{"aborted": True, "steps": [make_step("right", 10.0)]}]) is None
    assert find_example(make_episodes(make_step("a", 0.0), make_step("b", 0.0))) is None
