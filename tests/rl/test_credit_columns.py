"""gigpo_credit on plain arrays: types of columns, refused inputs, programs that are kept."""

from dataclasses import replace
from typing import Any

import gigpo_credit
import numpy as np
import pytest

from gigpo_jax.rl.algorithms import ALGORITHMS, make_advantages
from gigpo_jax.rl.types import collect_columns
from tests.compilation import record_events
from tests.rl.test_advantages import plan_columns

ARGUMENTS = ("reward", "penalty", "trajectory", "step", "group", "anchor")
# Two episodes of a task; the second one used up its steps.
ROWS: dict[str, Any] = {
    "reward": [0, 10, 0, 0],
    "trajectory": [0, 0, 1, 1],
    "step": [0, 1, 0, 1],
    "group": ["task"] * 4,
    "anchor": ["hall", "kitchen", "hall", "cellar"],
}


def credit(algorithm: str = "gigpo", **changes: Any) -> np.ndarray:
    """The advantages of `ROWS` with some changes."""
    return gigpo_credit.advantages(algorithm, **{**ROWS, **changes})


@pytest.mark.parametrize("flags", [[0, 0, 0, 1], np.array([0.0, 0.0, 0.0, 1.0])])
def test_flags_may_be_numbers(flags: Any) -> None:
    booleans = [False, False, False, True]
    expected = credit("graph_values", truncation="ignore", columns={"truncated": booleans})
    # The value of the hall comes from the kitchen, whose one outcome is 10; the cellar has none.
    assert expected[0] > 0
    found = credit("graph_values", truncation="ignore", columns={"truncated": flags})
    np.testing.assert_array_equal(found, expected)


def test_penalties_and_steps_may_be_whole_numbers_of_any_type() -> None:
    expected = credit(penalty=[0.0, 1.0, 0.0, 0.0])
    assert not np.array_equal(expected, credit())
    np.testing.assert_array_equal(credit(penalty=[0, 1, 0, 0]), expected)
    steps = np.array([0.0, 1.0, 0.0, 1.0])
    np.testing.assert_array_equal(credit(penalty=[0, 1, 0, 0], step=steps), expected)


def test_texts_of_a_column_are_hashed() -> None:
    # Equal texts of two columns are one state; None is no state.
    actions = ["go", "take", "go", "look"]
    next_anchors = ["kitchen", None, "cellar", None]
    computed = credit("salt", action=actions)
    given = credit("salt", action=actions, columns={"next_anchor": next_anchors})
    np.testing.assert_array_equal(given, computed)
    # Two numbers each are hashes: states are equal if both numbers are.
    names = np.unique(ROWS["anchor"], return_inverse=True)[1]
    hashes = np.array([[7, 9], [7, 3], [2, 9]], np.uint32)[names]
    for algorithm in ("gigpo", "graph_values"):
        got = credit(algorithm, anchor=hashes)
        np.testing.assert_allclose(got, credit(algorithm), atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reward": [0, np.nan, 0, 0]}, "reward[1]=nan: must be finite numbers"),
        ({"reward": [0, 1e300, 0, 0]}, "reward[1]=1e+300: must be finite numbers"),
        ({"reward": None}, "shape of reward=(): must have the shape [N]"),
        ({"reward": [[0], [1], [2], [3]]}, "shape of reward=(4, 1): must have the shape [N]"),
        ({"reward": ["a"] * 4}, "reward=['a', 'a', 'a', 'a']: must be finite numbers"),
        ({"penalty": [0, -1, 0, 0]}, "penalty[1]=-1.0: must be 0 or greater"),
        ({"step": [0, 0.5, 0, 1]}, "step[1]=0.5: must be whole numbers"),
        ({"step": [-1, 0, 0, 1]}, "step[0]=-1: must be 0 or greater"),
        (
            {"step": [0, 1, 1, 1]},
            "step[3]=1: row 2 is of the same group, trajectory and step; "
            "number the episodes of a group, and from 0 the steps of each",
        ),
        (
            {"anchor": ["a", None, "b", "c"]},
            "anchor=['a', None, 'b', 'c']: must be texts, or two 32-bit numbers each",
        ),
        ({"trajectory": [[0], [0], [1], [1]]}, "trajectory=[[0], [0], [1], [1]]: must be numbers or names"),
        ({"gamma": float("nan")}, "gamma=nan: must be finite; the default is 0.95"),
        ({"gamma": 1.5}, "gamma=1.5: must be from 0 to 1; the default is 0.95"),
        ({"gamma": None}, "gamma=None: must be a number; the default is 0.95"),
        ({"step_weight": float("inf")}, "step_weight=inf: must be finite; the default is 1.0"),
        ({"columns": {"won": [0, 1, 2, 0]}}, "won[2]=2: must be true or false"),
        ({"columns": {"entropy": [0, 1, np.inf, 0]}}, "entropy[2]=inf: must be finite numbers"),
        ({"columns": {"token_value": [0] * 4}}, "shape of token_value=(4,): must have the shape [N, R]"),
        ({"columns": {"entropi": [0] * 4}}, "columns.entropi: no such column; nearest: entropy"),
        ({"columns": {"reward": [0] * 4}}, "columns.reward: no such column; give it as an argument"),
    ],
)  # fmt: skip
def test_inputs_without_a_meaning_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(gigpo_credit.InputError) as caught:
        credit(**changes)
    assert str(caught.value) == message


def test_a_summary_may_have_the_index_of_its_step() -> None:
    # One strategy an episode, which stands in a row of its own before the first step.
    rows = {name: [*column, *column[::2]] for name, column in ROWS.items()}
    rows["anchor"][4:] = ["plan", "plan"]
    columns = {"summary": [0, 0, 0, 0, 1, 1], "strategy": [0, 0, 1, 1, 0, 1]}
    advantages = gigpo_credit.advantages("strata", **rows, columns=columns)
    assert advantages[4] == -advantages[5] > 0


def test_algorithms_that_act_elsewhere_are_refused() -> None:
    refused = []
    empty: dict[str, Any] = {name: [] for name in ROWS}
    assert gigpo_credit.advantages("graph_values", **empty).shape == (0,)
    for name in ALGORITHMS:
        try:
            gigpo_credit.advantages(name, **empty)
        except gigpo_credit.InputError as error:
            if error.key == "algorithm":
                refused.append(name)
    assert refused == ["response_weight", "serl", "opd", "a2tgpo", "slea"]
    with pytest.raises(
        gigpo_credit.InputError, match="algorithm=opd: changes the advantages of tokens"
    ):
        credit("opd", base="gigpo", outcome=1.0)


def test_values_without_a_fixed_point_are_refused() -> None:
    flags = {"truncated": [0, 0, 0, 1]}
    with pytest.raises(gigpo_credit.InputError, match="has no value"):
        credit("graph_values", gamma=1.0, truncation="ignore", columns=flags)
    credit("graph_values", gamma=1.0, truncation="ignore", shrinkage=0.5, columns=flags)


def test_a_default_that_reads_a_column_asks_for_it() -> None:
    # truncation="own" is the default of hiper; graph_values by default does not read the column.
    columns = {
        "plan_value": np.ones((4, 3)),
        "plan_start": [1, 0, 1, 0],
        "plan_changed": [0] * 4,
        "token_part": [[0, 1]] * 4,
    }
    with pytest.raises(gigpo_credit.InputError, match="truncated=None: hiper needs it"):
        credit("hiper", columns=columns)
    assert credit("hiper", truncation="end", columns=columns).any()


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["graph_values", "gagpo", "hgpo"])
def test_later_calls_compile_nothing_and_give_our_numbers(algorithm: str) -> None:
    common = {"gamma": 0.9, "step_weight": 1.0, "normalize": "mean_std"}
    batches = []
    for seed in (3, 4):
        columns = plan_columns(seed)
        batches.append({name: columns[name][columns["mask"]] for name in ARGUMENTS})
    assert len(batches[0]["reward"]) != len(batches[1]["reward"])
    gigpo_credit.advantages(algorithm, **batches[0], **common)
    with record_events() as events:
        found = gigpo_credit.advantages(algorithm, **batches[1], **common)
    assert not events
    rows = len(found)
    columns = collect_columns(**batches[1], mask=np.ones(rows, bool))
    columns = replace(columns, truncated=np.zeros(rows, bool))
    expected = make_advantages(algorithm, "paper", **common)(columns).total
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_an_algorithm_that_compares_states_needs_anchors() -> None:
    with pytest.raises(gigpo_credit.InputError, match=r"^anchor=None: gigpo compares steps"):
        credit("gigpo", anchor=None)
    np.testing.assert_array_equal(
        credit("gigpo", anchor=None, step_weight=0.0), credit("grpo", anchor=None)
    )


@pytest.mark.parametrize(
    ("changes", "start"),
    [
        ({"algorithm": "gipgo"}, "algorithm='gipgo': unknown; did you mean 'gigpo'?"),
        ({"algorithm": "hgpo", "histroy": 2}, "histroy: no such setting of the algorithm hgpo"),
        ({"preset": "papers"}, "preset='papers': no such preset"),
    ],
)
def test_errors_speak_of_arguments(changes: dict[str, Any], start: str) -> None:
    with pytest.raises(gigpo_credit.InputError) as caught:
        credit(**changes)
    assert str(caught.value).startswith(start)


def test_the_table_prints_its_names() -> None:
    assert str(gigpo_credit.ALGORITHMS).startswith("gigpo, grpo, ")
    assert len(str(gigpo_credit.ALGORITHMS)) < 600
