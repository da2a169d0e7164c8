"""The grid worlds with dials: their exact values agree with each other and with what is played."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.tabular_fork_learning import play_iteration
from benchmarks.tabular_forks import FIRST, MOST
from benchmarks.tabular_learning import Training, make_estimate, train
from benchmarks.tabular_worlds import (
    EPISODES,
    PAY,
    Tasks,
    World,
    dial_values,
    flatten_rows,
    make_columns,
    make_tasks,
    measure_success,
    play,
    stack_blocks,
    start_episodes,
)

SMALL = {"width": 3, "limit": 9}


def play_world(world: World) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Exact success [B M], returns, sums of exact advantages and first states [B M, E]."""
    blocks = [make_tasks(world, seed, 64) for seed in range(2)]
    tasks: Tasks = stack_blocks(blocks)
    keys = jax.vmap(jax.random.key)(jnp.arange(2))
    dials = dial_values(world)
    rows, exact = play(keys, tasks, tasks.noise, dials, start_episodes(tasks), limit=world.limit)
    columns = make_columns(rows)
    truth = flatten_rows(exact)
    success = measure_success(tasks, tasks.noise, jnp.float32(world.slip), limit=world.limit)
    shape = (-1, EPISODES, world.limit)
    rewards = np.asarray(columns.reward).reshape(shape).sum(-1)
    first = np.asarray(columns.anchor)[:: world.limit, 0].reshape(-1, EPISODES)
    return success.reshape(-1), rewards, np.asarray(truth).reshape(shape).sum(-1), first


def test_return_less_exact_advantages_is_the_value_of_the_start():
    success, returns, advantages, first = play_world(World(**SMALL))
    values = np.broadcast_to(PAY * success[:, None], returns.shape)
    np.testing.assert_allclose(returns - advantages, values, atol=1e-4)
    assert 0.1 < success.mean() < 0.9
    assert (first == first[:, :1]).all()


def test_noise_and_unpaid_goals_are_part_of_the_values():
    success, returns, advantages, _ = play_world(World(**SMALL, slip=0.4, unpaid=0.5))
    error = 3 * returns.std() / np.sqrt(returns.size)
    assert abs(returns.mean() - PAY * success.mean() / 2) < error
    assert abs(advantages.mean()) < 3 * advantages.std() / np.sqrt(advantages.size)
    assert success.mean() > 0.2


def test_episodes_from_later_states_have_the_steps_that_are_left():
    """An episode from the first state of the others' last step has one step."""
    world = World(**SMALL)
    tasks = stack_blocks([make_tasks(world, 0, 64)])
    keys = jax.vmap(jax.random.key)(jnp.arange(1))
    starts = start_episodes(tasks)
    steps = jnp.full_like(starts.step, world.limit - 1)
    later = starts._replace(step=steps)
    dials = dial_values(world)
    rows, _ = play(keys, tasks, tasks.noise, dials, later, limit=world.limit)
    mask = np.asarray(rows.mask)
    assert (mask.sum(1) == 1).all()
    assert mask[:, -1].all()
    assert (np.asarray(rows.state)[:, -1] == np.asarray(starts.state)).all()
    near = np.asarray(measure_success(tasks, tasks.noise, jnp.float32(0), limit=1))
    won = np.asarray(rows.reward).sum(1).mean(-1) / PAY
    assert abs(won.mean() - near.mean()) < 0.1


@pytest.mark.slow
def test_exact_advantages_teach():
    world = World(**SMALL)
    estimate = make_estimate("exact", {})
    curves = train(world, estimate, [0], [1000.0], Training(iterations=4))
    assert curves.trained[-1, 0] > curves.trained[0, 0] + 0.05
    assert curves.unseen == {}


@pytest.mark.slow
def test_forks_of_an_iteration_cost_as_many_steps_as_whole_episodes():
    world = World(**SMALL)
    tasks = stack_blocks([make_tasks(world, 0, 16)])
    keys = jax.vmap(jax.random.key)(jnp.arange(1))
    logits = jnp.asarray(tasks.noise)
    for choice in ("whole", "uncertainty"):
        rows, columns = play_iteration(world, choice, tasks, logits, keys, [0])
        mask = np.asarray(rows.mask)
        first = mask[..., :FIRST].sum()
        # Episodes are kept whole, so the budget is met within half an episode.
        assert abs(mask.sum() - 2 * first) < world.limit * 16 / 2
        forked = np.asarray(columns.forked).reshape(1, 16, FIRST + MOST, world.limit)
        assert not forked[:, :, :FIRST].any()
        assert forked.any() == (choice != "whole")
