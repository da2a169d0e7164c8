"""Values of states against a dense linear solve, and by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigpo_jax.rl.advantages import order_steps
from gigpo_jax.rl.graph import build_graph, solve_values, state_values
from gigpo_jax.rl.types import collect_columns
from tests.rl import graph_oracle
from tests.rl.test_advantages import Columns, columns, padded, permuted, random_batch

X, Y, Z = range(1, 4)


def values(batch: Columns, gamma: float) -> np.ndarray:
    """[N] f64; all small batches have one padded length, so one program is compiled."""
    found = state_values(**padded(batch), gamma=gamma)
    return np.asarray(found, np.float64)[: len(batch["mask"])]


def walks(
    seed: int, *, groups: int, members: int, steps: int, states: int, drift: float = 0.0
) -> Columns:
    """Random walks on a ring of `states`, each of `steps` rows or until it is back at state 0.

    A walk that comes back is won.
    """
    rng = np.random.default_rng(seed)
    rows = []
    for group in range(groups):
        for member in range(members):
            place = states // 2
            for t in range(steps):
                move = -1 if rng.random() < drift else int(rng.integers(-1, 2))
                won = (place + move) % states == 0
                rows.append((10.0 * won, 0.0, member, t, group, place))
                place = (place + move) % states
                if won:
                    break
    return columns(*zip(*rows))


def test_two_episodes_by_hand() -> None:
    # T1: X, Y, won. T2: X, Y, Z, lost. gamma 1/2: V(Z) = 0, V(Y) = (10 + 0) / 2 = 5, V(X) = 2.5.
    batch = columns([0, 10, 0, 0, 0], [0] * 5, [0, 0, 1, 1, 1], [0, 1, 0, 1, 2], [0] * 5,
                    [X, Y, X, Y, Z])  # fmt: skip
    np.testing.assert_allclose(values(batch, 0.5), [2.5, 5, 2.5, 5, 0], atol=1e-6)


def test_a_self_loop_by_hand() -> None:
    # X, X, X, won: V(X) = (2 gamma V(X) + 10) / 3, so 10 with gamma 1 and 5 with gamma 1/2.
    batch = columns([0, 0, 10], [0] * 3, [0] * 3, [0, 1, 2], [0] * 3, [X] * 3)
    np.testing.assert_allclose(values(batch, 1.0), [10] * 3, atol=1e-5)
    np.testing.assert_allclose(values(batch, 0.5), [5] * 3, atol=1e-5)


def test_a_cycle_and_a_gap_by_hand() -> None:
    # X, Y, X, Z won; with gamma 1/2 and a gap of two steps between X and Z:
    # V(Z) = 8, V(X) = (V(Y) / 2 + 8 / 4) / 2, V(Y) = V(X) / 2: V(X) = 8/7, V(Y) = 4/7.
    batch = columns([0, 0, 0, 8], [0] * 4, [0] * 4, [0, 1, 2, 4], [0] * 4, [X, Y, X, Z])
    np.testing.assert_allclose(values(batch, 0.5), [8 / 7, 4 / 7, 8 / 7, 8], atol=1e-5)


def test_pseudo_visits_with_a_given_outcome_by_hand() -> None:
    # X wins 10, or leads to Y, which wins nothing. With two pseudo-visits worth 2 each V(Y) = 4/3,
    # and with gamma 1 V(X) = (10 + 4/3 + 4) / 4.
    batch = columns([10, 0, 0], [0] * 3, [0, 1, 1], [0, 0, 1], [0] * 3, [X, X, Y])
    steps = order_steps(collect_columns(**batch))
    graph = build_graph(steps, 1.0, pseudo_visits=2.0)
    got = steps.restore(solve_values(graph, steps.reward, jnp.full(3, 2.0)))
    np.testing.assert_allclose(got, [46 / 12, 46 / 12, 4 / 3], atol=1e-6)


def test_equal_states_of_other_groups_are_other_states() -> None:
    batch = columns([10, 0, 2], [0, 0, 0.5], [0, 0, 1], [0] * 3, [0, 1, 1], [X] * 3)
    np.testing.assert_allclose(values(batch, 0.9), [10, 0.75, 0.75], atol=1e-6)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 0.95, 1.0])
def test_values_equal_a_linear_solve(gamma: float) -> None:
    for seed in range(6):
        batch = random_batch(seed)
        want = graph_oracle.state_values(batch, gamma=gamma)
        np.testing.assert_allclose(values(batch, gamma), want, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_values_equal_a_linear_solve_without_jit() -> None:
    with jax.disable_jit():
        batch = random_batch(9)
        got = state_values(**batch, gamma=1.0)
    want = graph_oracle.state_values(batch, gamma=1.0)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("gamma", [0.95, 0.999, 1.0])
@pytest.mark.parametrize(
    "size",
    [
        # States are visited up to 7,500 times.
        {"groups": 1, "members": 2500, "steps": 50, "states": 4},
        # An episode goes round for hundreds of steps: 300 backups miss V by two thirds.
        {"groups": 2, "members": 4, "steps": 500, "states": 40},
        # Most episodes hit the limit of steps: dead ends.
        {"groups": 3, "members": 8, "steps": 20, "states": 30},
    ],
)
def test_values_of_walks_equal_a_linear_solve(size: dict[str, int], gamma: float) -> None:
    batch = walks(1, **size)
    got = np.asarray(state_values(**batch, gamma=gamma), np.float64)
    # 1 - 0.999 in f32 differs from 1 - 0.999 in f64 by 4e-5 of it, and so would the values.
    want = graph_oracle.state_values(batch, gamma=float(np.float32(gamma)))
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * np.abs(want).max(initial=1.0))


@pytest.mark.slow
@pytest.mark.parametrize("gamma", [0.95, 0.99, 1.0])
@pytest.mark.parametrize("seed", [1, 2, 9])
def test_values_far_from_the_end_equal_a_linear_solve(seed: int, gamma: float) -> None:
    """A residual of 1e-6 may stand for an error of 1e-4 here."""
    batch = walks(seed, groups=4, members=8, steps=200, states=20)
    got = np.asarray(state_values(**batch, gamma=gamma), np.float64)
    want = graph_oracle.state_values(batch, gamma=float(np.float32(gamma)))
    np.testing.assert_allclose(got, want, rtol=0, atol=2e-6 * np.abs(want).max())


@pytest.mark.slow
def test_values_under_penalties_equal_a_linear_solve() -> None:
    """Steps cost 0.1, so that values far from the end are several rewards below 0."""
    batch = walks(4, groups=2, members=8, steps=800, states=60)
    batch["penalty"] = np.full_like(batch["penalty"], 0.1)
    got = np.asarray(state_values(**batch, gamma=1.0), np.float64)
    want = graph_oracle.state_values(batch, gamma=1.0)
    assert want.min() < -20
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * np.abs(want).max())


@pytest.mark.slow
def test_groups_with_small_rewards_are_as_exact_as_their_neighbours() -> None:
    batch = walks(2, groups=2, members=8, steps=40, states=8)
    scale = np.where(batch["group"] == 0, 1e-3, 1e3).astype(np.float32)
    got = np.asarray(state_values(**batch | {"reward": batch["reward"] * scale}, gamma=1.0))
    plain = graph_oracle.state_values(batch, gamma=1.0)
    np.testing.assert_allclose(got / scale, plain, atol=1e-4)


def test_equal_outcomes_give_exactly_equal_values() -> None:
    """Else whitening would blow rounding up to advantages."""
    batch = walks(3, groups=1, members=12, steps=400, states=6)
    assert batch["reward"].sum() == 120
    assert np.all(np.asarray(state_values(**batch, gamma=1.0)) == 10.0)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_properties_of_values(data: st.DataObject) -> None:
    rows = data.draw(st.integers(1, 40))
    integers = st.lists(st.integers(0, 3), min_size=rows, max_size=rows)
    trajectory, group, state, reward = (np.array(data.draw(integers)) for _ in range(4))
    step = np.zeros(rows, np.int32)
    for n in range(rows):
        same = (trajectory[:n] == trajectory[n]) & (group[:n] == group[n])
        step[n] = same.sum() * 2 + n % 2
    batch = columns(reward, [0] * rows, trajectory, step, group, state)
    batch["mask"] = np.array(data.draw(st.lists(st.booleans(), min_size=rows, max_size=rows)))
    gamma = data.draw(st.sampled_from([0.3, 0.95, 1.0]))
    got = values(batch, gamma)
    want = graph_oracle.state_values(batch, gamma=gamma)
    np.testing.assert_allclose(got, want, atol=1e-5 * max(1.0, np.abs(want).max()))
    order = np.random.default_rng(0).permutation(rows)
    hidden = batch | {"reward": np.where(batch["mask"], batch["reward"], np.nan)}
    np.testing.assert_allclose(
        values(permuted(hidden, order), gamma), got[order], atol=1e-5 * max(1.0, got.max())
    )


def test_no_rows_and_no_unmasked_rows() -> None:
    batch = random_batch(1)
    assert state_values(**{name: x[:0] for name, x in batch.items()}, gamma=1.0).shape == (0,)
    batch["mask"] = np.zeros_like(batch["mask"])
    assert not values(batch, 1.0).any()
