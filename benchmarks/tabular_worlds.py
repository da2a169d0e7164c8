"""Grid worlds with dials, whose values are known exactly; benchmarks/protocols/tabular.md.

A task is a grid with walls and a goal that pays 10 and ends the episode. The policy of a task is a
table of logits. A dial changes one thing of the base world. The skill of the policy before training
is such that it reaches the goal in `START` of its episodes, in every world.

Shapes: B blocks (one seed each), M tasks of a block, E episodes of a task, T steps of the limit,
S states, A actions, N = B M E T rows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from scipy import stats

from gigpo_jax.rl.advantages import Advantages
from gigpo_jax.rl.algorithms import make_advantages
from gigpo_jax.rl.types import StepColumns

MOVES = ((0, 1), (1, 0), (0, -1), (-1, 0), (0, 0))
FEATURES = 9 * 2 * len(MOVES)  # direction of the goal, whether a wall stops the move, the move
WALLS = 0.15
PAY = 10.0
EPISODES = 8
START = 0.4
COMMON: dict[str, Any] = {"gamma": 0.95, "step_weight": 1.0, "normalize": "mean_std"}

POOLED: dict[str, Any] = {"shrinkage": 0.25, "truncation": "ignore"}
ARMS: dict[str, tuple[str, dict[str, Any]]] = {
    "grpo": ("grpo", {}),
    "gigpo": ("gigpo", {}),
    "hgpo": ("hgpo", {}),
    "salt": ("salt", {"base": "gigpo"}),
    "graphgpo": ("graphgpo", {}),
    "gagpo": ("gagpo", {}),
    "g2po": ("g2po", {}),
    "graph_values": ("graph_values", POOLED),
    "graph_values episode=1": ("graph_values", POOLED | {"episode": 1.0}),
}


@dataclass(frozen=True)
class World:
    """The dials of a world.

    Attributes:
      width: Width of the grid.
      limit: Largest number of steps of an episode.
      actions: Number of actions; those beyond the five moves repeat one of them, another in each
        state.
      appearances: Number of anchors of each state, of which each visit draws one.
      slip: Probability that a random move takes the place of the action.
      unpaid: Probability that the goal pays 0.
    """

    width: int = 6
    limit: int = 36
    actions: int = 5
    appearances: int = 1
    slip: float = 0.0
    unpaid: float = 0.0


BASE = World()
# Width grows with the root of the limit, so that the visits of a state stay about the same.
WORLDS: dict[str, World] = {
    "base": BASE,
    "limit=18": World(width=4, limit=18),
    "limit=72": World(width=8, limit=72),
    "limit=144": World(width=12, limit=144),
    "appearances=4": World(appearances=4),
    "appearances=16": World(appearances=16),
    "actions=10": World(actions=10),
    "actions=40": World(actions=40),
    "slip=0.2": World(slip=0.2),
    "slip=0.4": World(slip=0.4),
    "unpaid=0.5": World(unpaid=0.5),
}


def count_tasks(world: World) -> int:
    """The tasks of a block: all batches have the same number of rows.

    So an estimator is compiled once.
    """
    return 8 * BASE.limit // world.limit


class Tasks(NamedTuple):
    """Tasks of one block, or of several blocks with a leading axis [B].

    Attributes:
      target: [M, S, A] i32, state that an action leads to.
      feature: [M, S, A] i32, number of the action's feature.
      progress: [M, S, A] f32, distance that an action gains.
      noise: [M, S, A] f32, preferences of the policy before training beside its skill.
      start: [M] i32.
      goal: [M] i32.
    """

    target: Any
    feature: Any
    progress: Any
    noise: Any
    start: Any
    goal: Any


class Rows(NamedTuple):
    """Steps of episodes, [T, M, E].

    Attributes:
      state: State.
      action: Action.
      appearance: Number of the anchor among the anchors of the state.
      reward: Reward.
      mask: False behind the end of the episode.
    """

    state: Array
    action: Array
    appearance: Array
    reward: Array
    mask: Array


def make_tasks(world: World, seed: int, count: int) -> Tasks:
    """Draws tasks of a seed."""
    rng = np.random.default_rng(seed)
    return Tasks(*(np.stack(arrays) for arrays in zip(*(_draw(rng, world) for _ in range(count)))))


def _draw(rng: np.random.Generator, world: World) -> tuple[Any, ...]:
    """Draws the fields of one task."""
    width = world.width
    states = width * width
    goal = rng.integers(states)
    x, y = np.divmod(np.arange(states), width)
    distance = np.abs(x - x[goal]) + np.abs(y - y[goal])
    move = np.tile(np.arange(len(MOVES)), (states, 1))
    copies = rng.integers(len(MOVES), size=(states, world.actions - len(MOVES)))
    walls = rng.random(move.shape) < WALLS
    move = np.concatenate([move, copies], 1)
    dx, dy = np.moveaxis(np.array(MOVES)[move], 2, 0)
    is_inside = ((x[:, None] + dx) // width == 0) & ((y[:, None] + dy) // width == 0)
    is_free = is_inside & ~np.take_along_axis(walls, move, 1)
    stay = np.arange(states)[:, None]
    target = np.where(is_free, stay + dx * width + dy, stay)
    direction = 3 * np.sign(x[goal] - x) + np.sign(y[goal] - y) + 4
    feature = (direction[:, None] * 2 + is_free) * len(MOVES) + move
    progress = (distance[:, None] - distance[target]).astype(np.float32)
    noise = rng.normal(size=target.shape).astype(np.float32)
    start = rng.choice(np.flatnonzero(distance >= width // 2))
    return target.astype(np.int32), feature.astype(np.int32), progress, noise, start, goal


def expect_outcomes(tasks: Tasks, value: Array, slip: Array, pay: Array) -> Array:
    """The expected outcome of each action, [M, S, A].

    Args:
      tasks: Tasks of one block.
      value: [M, S], values of states with one step less.
      slip: Probability of a random move.
      pay: Mean reward of the goal.
    """
    outcome = jax.vmap(lambda row, goal: row.at[goal].set(pay))(value, tasks.goal)
    reached = jax.vmap(lambda row, target: row[target])(outcome, tasks.target)
    return (1 - slip) * reached + slip * reached[..., :4].mean(-1, keepdims=True)


@partial(jax.jit, static_argnames="limit")
def measure_success(tasks: Tasks, logits: Array, slip: Array, *, limit: int) -> Array:
    """The exact probability of reaching the goal from the start.

    Args:
      tasks: Tasks of blocks.
      logits: [B, M, S, A], logits of the policy.
      slip: Probability of a random move.
      limit: Largest number of steps.

    Returns:
      [B, M].
    """

    def measure(tasks: Tasks, logits: Array) -> Array:
        policy = jax.nn.softmax(logits)

        def back_up(_: int, value: Array) -> Array:
            return (policy * expect_outcomes(tasks, value, slip, jnp.float32(1))).sum(-1)

        value = lax.fori_loop(0, limit, back_up, jnp.zeros(logits.shape[:2]))
        return jnp.take_along_axis(value, tasks.start[:, None], 1)[:, 0]

    return jax.vmap(measure)(tasks, logits)


@cache
def find_skill(world: World) -> float:
    """The skill with which other tasks are won in `START` of the episodes."""
    # Appearances and pay do not change the success.
    world = replace(world, appearances=1, unpaid=0.0)
    tasks = jax.tree.map(lambda array: array[None], make_tasks(world, 10_000, 256))
    low = 0.0
    high = 8.0
    for _ in range(12):
        skill = (low + high) / 2
        logits = skill * tasks.progress + tasks.noise
        success = measure_success(tasks, logits, jnp.float32(world.slip), limit=world.limit)
        if float(success.mean()) < START:
            low = skill
        else:
            high = skill
    return (low + high) / 2


class Starts(NamedTuple):
    """First states of episodes, [M, E], or of several blocks with a leading axis [B].

    Attributes:
      state: First state.
      step: Steps of the task that lie before it.
      past: Hash of the actions of these steps.
    """

    state: Any
    step: Any
    past: Any


def start_episodes(tasks: Tasks, episodes: int = EPISODES) -> Starts:
    """The starts of whole episodes, for tasks of blocks."""
    shape = (*tasks.start.shape, episodes)
    state = jnp.broadcast_to(tasks.start[..., None], shape)
    return Starts(state, jnp.zeros(shape, jnp.int32), jnp.zeros(shape, jnp.uint32))


@jax.jit
def hash_histories(rows: Rows, starts: Starts) -> Array:
    """Hashes of all actions of the task before each step, [B, T, M, E] u32."""

    def advance(past: Array, step: tuple[Array, Array]) -> tuple[Array, Array]:
        action, is_running = step
        longer = (past + action.astype(jnp.uint32) + 1) * jnp.uint32(2654435761)
        return jnp.where(is_running, longer, past), past

    in_time = (jnp.moveaxis(rows.action, 1, 0), jnp.moveaxis(rows.mask, 1, 0))
    _, past = lax.scan(advance, starts.past, in_time)
    return jnp.moveaxis(past, 0, 1)


@partial(jax.jit, static_argnames="limit")
def play(
    keys: Array,
    tasks: Tasks,
    logits: Array,
    dials: dict[str, Array],
    starts: Starts,
    *,
    limit: int,
) -> tuple[Rows, Array]:
    """Plays episodes of all tasks.

    Args:
      keys: [B] keys.
      tasks: Tasks of blocks.
      logits: [B, M, S, A], logits of the policy.
      dials: Values of `slip`, `unpaid` and `appearances`.
      starts: First states of blocks.
      limit: Largest number of steps.

    Returns:
      Rows, and the exact advantages Q(s, a) - V(s) with the steps that are left; both have a
      leading axis [B]. Rows before the start of an episode are masked.
    """
    return jax.vmap(partial(_play_block, dials=dials, limit=limit))(keys, tasks, logits, starts)


def _play_block(
    key: Array, tasks: Tasks, logits: Array, starts: Starts, *, dials: dict[str, Array], limit: int
) -> tuple[Rows, Array]:
    """The rows of one block and their exact advantages."""
    task = jnp.arange(len(tasks.goal))[:, None]
    shape = starts.state.shape

    policy = jax.nn.softmax(logits)
    thresholds = jnp.cumsum(policy, -1)[..., :-1]

    def advance(
        carry: tuple[Array, Array], step: tuple[Array, Array]
    ) -> tuple[tuple[Array, Array], Rows]:
        state, is_open = carry
        number, draws = step
        is_running = is_open & (number >= starts.step)
        action = (thresholds[task, state] < draws[0, ..., None]).sum(-1)
        move = jnp.where(draws[1] < dials["slip"], (draws[2] * 4).astype(jnp.int32), action)
        reached = tasks.target[task, state, move]
        is_won = is_running & (reached == tasks.goal[:, None])
        reward = jnp.where(is_won & (draws[3] >= dials["unpaid"]), PAY, 0.0)
        appearance = (draws[4] * dials["appearances"]).astype(jnp.int32)
        rows = Rows(state, action, appearance, reward, is_running)
        return (jnp.where(is_running, reached, state), is_open & ~is_won), rows

    start = (starts.state, jnp.ones(shape, bool))
    draws = jax.random.uniform(key, (limit, 5, *shape))
    _, rows = lax.scan(advance, start, (jnp.arange(limit), draws))
    pay = PAY * (1 - dials["unpaid"])

    def back_up(value: Array, rows: Rows) -> tuple[Array, Array]:
        outcome = expect_outcomes(tasks, value, dials["slip"], pay)
        value = (policy * outcome).sum(-1)
        advantage = outcome[task, rows.state, rows.action] - value[task, rows.state]
        return value, jnp.where(rows.mask, advantage, 0.0)

    # The last step has one step left, so the values are made from the end.
    _, advantage = lax.scan(back_up, jnp.zeros(logits.shape[:2]), rows, reverse=True)
    return rows, advantage


def flatten_rows(values: Array) -> Array:
    """Rows [B, T, M, E] in the order of episodes, [N]."""
    return jnp.moveaxis(values, 1, 3).reshape(-1)


@jax.jit
def make_columns(rows: Rows) -> StepColumns:
    """The columns of all blocks' rows."""
    _, limit, _, episodes = rows.mask.shape
    index = jnp.arange(rows.mask.size, dtype=jnp.int32)
    mask = flatten_rows(rows.mask)
    anchor = jnp.stack([flatten_rows(rows.state) + 1, flatten_rows(rows.appearance)], 1).astype(
        jnp.uint32
    )
    is_followed = jnp.roll(mask, -1) & (index % limit < limit - 1)
    action = flatten_rows(rows.action)
    is_paid = jnp.sum(rows.reward, 1, keepdims=True) > 0.0
    won = flatten_rows(jnp.broadcast_to(is_paid, rows.mask.shape))
    return StepColumns(
        reward=flatten_rows(rows.reward),
        penalty=jnp.zeros(len(index)),
        trajectory=index // limit,
        step=index % limit,
        group=index // (limit * episodes),
        anchor=anchor,
        mask=mask,
        action=jnp.stack([action + 1, action], 1).astype(jnp.uint32),
        won=won,
        truncated=mask & ~won & (index % limit == limit - 1),
        next_anchor=jnp.where(is_followed[:, None], jnp.roll(anchor, -1, 0), 0),
    )


def dial_values(world: World) -> dict[str, Array]:
    """The dials that do not change shapes."""
    return {
        "slip": jnp.float32(world.slip),
        "unpaid": jnp.float32(world.unpaid),
        "appearances": jnp.float32(world.appearances),
    }


def make_estimator(name: str, settings: dict[str, Any]) -> Callable[[StepColumns], Advantages]:
    """An estimator of the catalogue, compiled."""
    return jax.jit(make_advantages(name, "verl_agent", **COMMON | settings))


def stack_blocks(blocks: list[Tasks]) -> Tasks:
    """Tasks with a leading axis of blocks."""
    return jax.tree.map(lambda *arrays: jnp.asarray(np.stack(arrays)), *blocks)


def summarise(values: Sequence[float] | np.ndarray) -> dict[str, Any]:
    """Mean over seeds, half the width of its 95% t-interval, and the values."""
    error = np.std(values, ddof=1) / np.sqrt(len(values))
    margin = float(stats.t.ppf(0.975, len(values) - 1) * error)
    return {
        "mean": float(np.mean(values)),
        "margin": margin,
        "by_seed": np.round(values, 4).tolist(),
    }
