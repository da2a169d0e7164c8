"""The point of the method, learned in seconds: where states recur, step-level credit beats
episode-level credit.

A goal-conditioned tabular softmax policy on a 6 x 6 grid: five actions (four moves and staying), 24
steps, a reward of 10 at the goal, 16 tasks x 8 episodes an iteration. Only the advantages differ
between the runs.
"""

import numpy as np
import pytest

from gigpo_jax.rl.algorithms import make_advantages
from gigpo_jax.rl.types import StepColumns

pytestmark = pytest.mark.slow

SIDE = 6
STEPS = 24
GROUPS = 16
MEMBERS = 8
ITERATIONS = 120
CELLS = SIDE * SIDE
EPISODES = GROUPS * MEMBERS
MOVES = np.asarray([[-1, 0], [1, 0], [0, -1], [0, 1], [0, 0]])
LEARNING_RATE = 0.3


def train(algorithm: str, preset: str, seed: int) -> float:
    """Mean success over iterations 90 to 120."""
    rng = np.random.default_rng(seed)
    logits = np.zeros((CELLS, CELLS, len(MOVES)))  # goal, position, action
    advantages = make_advantages(
        algorithm, preset, gamma=0.95, step_weight=1.0, normalize="mean_std"
    )
    episode, t = np.divmod(np.arange(EPISODES * STEPS, dtype=np.int32), STEPS)
    success = []
    for _ in range(ITERATIONS):
        start = np.repeat(rng.integers(CELLS, size=GROUPS), MEMBERS)
        goal = (start + np.repeat(rng.integers(1, CELLS, size=GROUPS), MEMBERS)) % CELLS
        states, actions, rewards, alive = rollout(rng, logits, start, goal)
        anchor = np.stack([states.ravel(), np.zeros(states.size)], 1).astype(np.uint32)
        penalty = np.zeros(rewards.size, np.float32)
        group = episode // MEMBERS
        result = advantages(
            StepColumns(rewards.ravel(), penalty, episode, t, group, anchor, alive.ravel())
        )
        gradient = np.asarray(result.total).reshape(states.shape)
        gradient = policy_gradient(logits, goal, states, actions, gradient)
        logits += LEARNING_RATE * gradient / GROUPS
        success.append(rewards.any(axis=1).mean())
    return float(np.mean(success[89:]))


def rollout(rng, logits, start, goal):
    """[E, T] positions, actions, rewards and whether the step was taken."""
    position = np.stack(np.divmod(start, SIDE), 1)
    states, actions = np.zeros((2, EPISODES, STEPS), np.int64)
    rewards = np.zeros((EPISODES, STEPS), np.float32)
    alive = np.zeros((EPISODES, STEPS), bool)
    going = np.ones(EPISODES, bool)
    for t in range(STEPS):
        states[:, t] = position @ [SIDE, 1]
        alive[:, t] = going
        noise = rng.gumbel(size=(EPISODES, len(MOVES)))
        actions[:, t] = np.argmax(logits[goal, states[:, t]] + noise, axis=1)
        position = np.clip(position + MOVES[actions[:, t]], 0, SIDE - 1)
        reached = going & (position @ [SIDE, 1] == goal)
        rewards[reached, t] = 10.0
        going &= ~reached
    return states, actions, rewards, alive


def policy_gradient(logits, goal, states, actions, advantage):
    """Gradient of sum of advantage * log-probability of the action taken."""
    out = np.zeros_like(logits)
    table = np.exp(logits[goal[:, None], states])
    score = -table / table.sum(-1, keepdims=True)
    np.put_along_axis(
        score, actions[..., None], np.take_along_axis(score, actions[..., None], -1) + 1.0, -1
    )
    np.add.at(
        out, (np.broadcast_to(goal[:, None], states.shape), states), advantage[..., None] * score
    )
    return out


@pytest.mark.parametrize("preset", ["paper", "verl_agent"])
def test_step_credit_learns_faster(preset):
    """Seen: 0.69 to 0.70 against 0.45 to 0.47 ("paper"), 0.72 to 0.73 against 0.50 to 0.53
    ("verl_agent").
    """
    for seed in range(3):
        gigpo, grpo = (train(name, preset, seed) for name in ("gigpo", "grpo"))
        assert gigpo > grpo + 0.15, (seed, gigpo, grpo)
