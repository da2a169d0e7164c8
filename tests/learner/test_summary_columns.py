"""Advantages of summaries: rows that take no step of the environment."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from gigpo_jax.env_bridge.types import Task
from gigpo_jax.learner.scored_steps import ScoredSteps
from gigpo_jax.learner.step_columns import step_columns
from gigpo_jax.methods.spa_rl.executable import ExecutableActions
from gigpo_jax.methods.text_critic.critic import remaining_returns
from gigpo_jax.rl.advantages import gigpo_advantages, order_steps
from gigpo_jax.rl.algorithms import make_advantages
from gigpo_jax.rl.gae import step_gae
from gigpo_jax.rl.graph import build_graph, distances, state_values
from gigpo_jax.rollout.episode_texts import summary_anchor
from gigpo_jax.trajectory import Trajectory, finished_steps
from tests.turns import make_turn

GAMMA = 0.5
NEEDS = ("action", "next_anchor", "summary", "won")
PLAIN = {"gamma": GAMMA, "step_weight": 1.0, "normalize": "mean"}


def episode(member: int, reward: float, summary: str | None) -> Trajectory:
    """Two steps in a corridor and one at a fork, perhaps with a summary before the last."""
    turns = [
        make_turn(anchor="0", action="go", reward=0.0),
        make_turn(anchor="1", action="go", reward=0.0),
        make_turn(anchor="2", action=f"door {reward}", reward=reward),
    ]
    if summary is not None:
        note = make_turn(anchor=summary_anchor("2"), action=summary, is_text=True)
        turns.insert(2, note)
    return Trajectory(Task("t", "", ""), 0, member, turns, won=reward > 1)


def columns_of(*summaries: str | None):
    rewards = (8.0, 4.0, 0.0, 0.0)
    episodes = [episode(n, rewards[n], text) for n, text in enumerate(summaries)]
    steps = finished_steps(episodes)
    return steps, step_columns(steps, needs=NEEDS)


def test_a_summary_has_the_return_of_the_step_after_it_and_is_compared_with_summaries():
    steps, columns = columns_of("red", "blue", None)
    rows = range(len(steps))
    assert [step.step for step in steps] == [0, 1, 2, 2, 0, 1, 2, 2, 0, 1, 2]
    result = make_advantages("gigpo", "paper", **PLAIN)(columns)
    step_part = np.asarray(result.step)[: len(steps)]
    # Returns at the fork: 8, 4, 0; the mean of summaries is 6, the mean of steps 4.
    assert step_part[[2, 6]] == pytest.approx([2.0, -2.0])
    assert step_part[[3, 7, 10]] == pytest.approx([4.0, 0.0, -4.0])
    # One step before: half of it, with or without a summary between.
    assert step_part[[1, 5, 9]] == pytest.approx([2.0, 0.0, -2.0])
    # Every step of the episode has this episode part.
    episode_part = np.asarray(result.episode)[: len(steps)]
    assert episode_part[:4] == pytest.approx([4.0] * 4)
    assert remaining_returns(steps) == pytest.approx([8.0] * 4 + [4.0] * 4 + [0.0] * 3)
    assert list(columns.summary[rows]) == [row in (2, 6) for row in rows]
    assert columns.next_anchor[[1, 2]].tolist() == columns.anchor[[2, 3]].tolist()


def test_a_summary_is_no_executable_action():
    steps, _ = columns_of("red", None)
    columns = ExecutableActions().compute_columns(ScoredSteps(steps, (None, None), None))
    assert columns["executable"].tolist() == [True, True, False, True, True, True, True]


@pytest.mark.slow
def test_rows_in_another_order_of_episodes_give_the_same():
    steps, columns = columns_of("red", "blue", None)
    # Hosts bring their rows one after the other; rows of an episode stay in order.
    order = [*range(8, 11), *range(4, 8), *range(4)]
    moved = step_columns([steps[row] for row in order], needs=NEEDS)
    for name in ("gigpo", "graph_values", "graphgpo", "step_ppo"):
        if name == "step_ppo":
            columns = replace(columns, value=np.zeros(len(columns.mask), np.float32))
            moved = replace(moved, value=np.zeros(len(moved.mask), np.float32))
        if name == "graph_values":
            columns = replace(columns, truncated=~columns.mask)
            moved = replace(moved, truncated=~moved.mask)
        advantages = make_advantages(name, "paper", **PLAIN)
        one = np.asarray(advantages(columns).total)[order]
        other = np.asarray(advantages(moved).total)[: len(order)]
        np.testing.assert_allclose(one, other, atol=1e-6, err_msg=name)


def test_states_that_look_alike_are_not_alike_to_summaries():
    steps, _ = columns_of("red", "blue", None)
    similar = step_columns(steps, similarity=0.1)
    anchors = {tuple(lanes) for lanes in similar.anchor[[2, 6]].tolist()}
    others = {tuple(lanes) for lanes in similar.anchor[[0, 1, 3, 4, 5, 7]].tolist()}
    assert len(anchors) == 1
    assert not anchors & others


def test_the_graph_has_a_node_for_summaries_and_no_loop():
    _, columns = columns_of("red", "blue", None)
    values = state_values(
        *(getattr(columns, n) for n in ("reward", "penalty", "trajectory", "step", "group")),
        columns.anchor,
        columns.mask,
        gamma=GAMMA,
    )
    # The fork is worth the mean of 8, 4 and 0, and so is the node before it: it costs no step.
    assert values[:4] == pytest.approx([1.0, 2.0, 4.0, 4.0], abs=1e-5)
    ordered = order_steps(columns)
    graph = build_graph(ordered, 1.0)
    wins = ordered.valid & ~graph.is_followed & jnp.asarray(columns.won)[ordered.order]
    assert list(ordered.restore(distances(graph, wins))[:4]) == [3.0, 2.0, 1.0, 1.0]


def test_gae_does_not_discount_over_a_summary():
    _, columns = columns_of("red", "blue", None)
    value = np.zeros(len(columns.mask), np.float32)
    fields = ("trajectory", "step", "group", "mask")
    rows = [getattr(columns, name) for name in fields]
    result = step_gae(columns.reward, value, *rows, gamma=GAMMA, lam=1.0)
    assert result.advantage[:4] == pytest.approx([2.0, 4.0, 8.0, 8.0])


@pytest.mark.parametrize("summaries", [("go", "go", None), ("red", "blue", None)])
def test_summaries_are_no_repeats_and_break_no_pair(summaries):
    _, columns = columns_of(*summaries)
    base = np.asarray(make_advantages("grpo", "paper", **PLAIN)(columns).total)
    result = np.asarray(make_advantages("repeat_discount", "paper", **PLAIN)(columns).total)
    # The second "go" is the only repeat; 0.8 and 1, halved together.
    assert result[1] == pytest.approx(base[1] * 0.9)
    unchanged = [0, 2, 3, 4, 6, 7, 8, 10]
    assert result[unchanged] == pytest.approx(base[unchanged])
    # Without the column a summary "go" would be a repeat.
    plain = make_advantages("repeat_discount", "paper", **PLAIN)(replace(columns, summary=None))
    assert (float(plain.total[2]) != result[2]) == (summaries[0] == "go")


def test_many_summaries_in_one_episode_stay_in_order():
    turns = []
    for number in range(4):
        if number:
            turns.append(make_turn(anchor=f"s{number}", is_text=True))
        turns.append(make_turn(anchor=str(number), reward=float(number)))
    steps = finished_steps([Trajectory(Task("t", "", ""), 0, 0, turns)])
    assert [step.turn_index for step in steps] == list(range(7))
    c = step_columns(steps)
    ordered = order_steps(c)
    assert list(ordered.order[:7]) == list(range(7))
    result = gigpo_advantages(
        *(c.reward, c.penalty, c.trajectory, c.step, c.group, c.anchor, c.mask),
        **PLAIN,
        episode_stats="trajectory",
        penalty_in="reward",
        singleton_episode="raw",
    )
    assert result.episode[:7] == pytest.approx([6.0] * 7)
