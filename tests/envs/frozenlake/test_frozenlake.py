"""FrozenLake: the rules against Gymnasium, exact values, slips, replays."""

import random

import gymnasium
import numpy as np
import pytest

from gigpo_jax.core.errors import InputError
from gigpo_jax.envs import registry
from gigpo_jax.envs.frozenlake import lake as rules
from gigpo_jax.envs.frozenlake.env import FrozenLakeGame
from tests.envs.futures import count_equal_anchors

PUBLIC_MAP = ("SFFF", "FHFH", "FFFH", "HFFG")  # Gymnasium's "4x4"
SHORT = ("SFF", "FHF", "FFG")


def draw_lakes(count: int) -> list[tuple[str, ...]]:
    lakes = [rules.draw_lake(random.Random(seed), 4) for seed in range(count)]
    return [lake for lake in lakes if lake is not None]


@pytest.mark.parametrize("is_slippery", [False, True])
def test_transitions_are_those_of_gymnasium(is_slippery: bool) -> None:
    for lake in (PUBLIC_MAP, SHORT, *draw_lakes(20)):
        table = gymnasium.make(
            "FrozenLake-v1", desc=list(lake), is_slippery=is_slippery
        ).unwrapped.P
        assert len(table) == len("".join(lake))
        for cell, actions in table.items():
            assert len(actions) == len(rules.ACTIONS)
            for number, expected in actions.items():
                found = rules.list_transitions(lake, cell, number, is_slippery=is_slippery)
                np.testing.assert_allclose(
                    sorted(found, key=lambda row: row.cell),
                    sorted(expected, key=lambda row: row[1]),
                    rtol=1e-12,
                )


def test_lakes_have_paths_and_the_splits_share_none() -> None:
    lakes = {}
    env = registry.make("frozenlake")
    for split in ("train", "test"):
        tasks = env.tasks(split)[:300]
        lakes[split] = {env.reset(task).anchor for task in tasks}
        assert all(registry.make("frozenlake", regret=True).digest(task) for task in tasks[:3])
    assert lakes["train"].isdisjoint(lakes["test"])
    assert len(lakes["train"]) > 150
    assert len(draw_lakes(200)) < 200  # those without a path are left out


def test_values_by_hand_and_by_policy_evaluation() -> None:
    values = rules.find_action_values(SHORT, is_slippery=False, gamma=0.9)
    # Four moves to the goal, along the edge; "left" and "up" stay at the start.
    np.testing.assert_allclose(values[0], [0.9**4, 0.9**3, 0.9**3, 0.9**4], atol=1e-12)
    assert values[4].tolist() == values[8].tolist() == [0.0] * 4
    np.testing.assert_allclose(values[7], [0.9**2, 0.9, 1.0, 0.0], atol=1e-12)
    for lake in (PUBLIC_MAP, *draw_lakes(8)):
        values = rules.find_action_values(lake, is_slippery=True, gamma=0.95)
        best = values.argmax(1)
        # The values of the greedy policy, by a linear solve with Gymnasium's table.
        table = gymnasium.make("FrozenLake-v1", desc=list(lake), is_slippery=True).unwrapped.P
        matrix, reward = np.eye(16), np.zeros(16)
        for cell in range(16):
            for probability, target, gain, is_over in table[cell][int(best[cell])]:
                reward[cell] += probability * gain
                if not is_over:
                    matrix[cell, target] -= 0.95 * probability
        np.testing.assert_allclose(values.max(1), np.linalg.solve(matrix, reward), atol=1e-10)


def test_an_episode_by_hand() -> None:
    game = FrozenLakeGame(SHORT, [0] * 9)
    assert game.text(picture=False) == "P _ _\n_ O _\n_ _ G"
    assert game.remaining() == 4
    assert game.act("jump") == (0.0, False)
    assert game.state() == "P__\n_O_\n__G"
    for action in ("down", "down", "right"):
        assert game.act(action) == (0.0, False)
    assert game.remaining() == 1
    assert game.act("right") == (1.0, True)
    assert (game.won, game.state()) == (True, "___\n_O_\n__√")
    fallen = FrozenLakeGame(SHORT, [0] * 9)
    fallen.act("right")
    assert fallen.act("down") == (0.0, True)
    assert (fallen.won, fallen.state(), fallen.remaining()) == (False, "___\n_X_\n__G", None)
    # "right" with a slip of -1 goes down, with 1 up.
    slipping = FrozenLakeGame(SHORT, [-1, 1, 0, 0, 0, 0])
    slipping.act("right")
    assert slipping.state() == "___\nPO_\n__G"
    assert slipping.remaining() == 3
    slipping.act("right")
    assert slipping.state() == "P__\n_O_\n__G"


def test_slips_are_fair_and_belong_to_task_and_step() -> None:
    env = registry.make("frozenlake", slippery=True, max_steps=30)
    counts = np.zeros(4)
    for task in env.tasks("train")[:900]:
        start = env.reset(task).anchor
        anchor = env.step("right").observation.anchor
        assert env.reset(task).anchor == start
        assert env.step("right").observation.anchor == anchor
        cell = next(n for n, letter in enumerate(anchor.replace("\n", "")) if letter in "PX√")
        counts[[1, 4, 0].index(cell)] += 1
    # Right, down (-1) and up (1), where the edge stops it: a third each, six deviations wide.
    assert np.all(np.abs(counts[:3] - 300) < 6 * np.sqrt(900 * 2 / 9))


def test_equal_states_have_equal_futures() -> None:
    env = registry.make("frozenlake", max_steps=100, regret=True)
    pairs = 0
    for number, task in enumerate(env.tasks("train")[:8]):
        pairs += count_equal_anchors(env, task, episodes=8, steps=8, seed=number)
    assert pairs > 50


def test_equal_states_at_equal_steps_have_equal_futures_on_slippery_ice() -> None:
    env = registry.make("frozenlake", slippery=True, max_steps=100, regret=True)
    pairs = 0
    for number, task in enumerate(env.tasks("train")[:8]):
        pairs += count_equal_anchors(env, task, episodes=20, steps=8, seed=number, same_step=True)
    assert pairs > 50


def test_the_expert_finds_shortest_paths_and_wins_on_slippery_ice() -> None:
    wins = {}
    for slippery, max_steps in ((False, 15), (True, 100)):
        env = registry.make("frozenlake", slippery=slippery, max_steps=max_steps, regret=True)
        won = []
        for task in env.tasks("test")[:60]:
            expert = registry.make_expert("frozenlake", 0)
            result = None
            observation = env.reset(task)
            while result is None or not result.done:
                result = env.step(expert.act(observation))
                observation = result.observation
                assert slippery or result.info["regret"] == 0.0
            won.append(result.info["won"])
        wins[slippery] = np.mean(won)
    assert wins[False] == 1.0
    assert 0.1 < wins[True] < 1.0


@pytest.mark.parametrize(
    ("option", "value"), [("size", 2), ("size", 9), ("max_steps", 0), ("anchor", "lake")]
)
def test_bad_options_are_refused(option: str, value: object) -> None:
    with pytest.raises(InputError, match=f"{option}={value!r}"):
        registry.make("frozenlake", **{option: value})
