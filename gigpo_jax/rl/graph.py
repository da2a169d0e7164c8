"""The graph of a task group: its nodes are anchor states, its edges lead from a step to the next.

Every unmasked row is an edge from the anchor state g of its step to the anchor state g' of the next
row of its trajectory, or to the end of the episode. Equal hashes in different groups are different
states. A summary has an anchor of its own: its node lies between two states, and its edge, which
takes no step, has length 0 and no discount. So it is no loop, and every cycle has an edge of length
1.

The mean backup of values V over the rows of each state,

    V(g) <- mean of r - p + gamma^w V(g')           w: steps to the next row, 1 without gaps

has one fixed point: the values of the policy in the Markov chain that the group has seen. The chain
ends, because every episode does, so this holds for gamma 1 too. Repeated backups come closer by a
factor of gamma each; with gamma 1 they may take tens of thousands where states recur.
`solve_values` needs few: it corrects the values by BiCGSTAB, whose vectors have one entry a row,
and never builds a matrix.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.scipy.sparse.linalg import bicgstab
from jax.typing import ArrayLike

from gigpo_jax.rl import segments
from gigpo_jax.rl.advantages import Steps, check_columns, order_steps, present_columns
from gigpo_jax.rl.neighbours import following_values
from gigpo_jax.rl.types import StepColumns

# A bound for the while loop: it ends also where float32 cannot reach the residual.
ROUNDS = 12  # largest number of corrections
BACKUPS = 32  # backups in a round whose correction fails
# Sizes in units of the largest reward of the group.
SETTLED = 3e-6  # largest entry of the last correction
ALMOST_SETTLED = 1e-4  # likewise, where corrections stop shrinking
FINE_RESIDUAL = 2e-7  # below it residuals may be rounding alone
# Differences of values that are smaller than this share of the group's largest reward are rounding.
ROUNDING = 1e-5
# Number of rounds, both parts of the values, their residual, its largest entry, and the largest
# entry of the correction now and before.
_Round = tuple[Array, Array, Array, Array, Array, Array, Array]


@jax.jit
def state_values(
    reward: Array,
    penalty: Array,
    trajectory: Array,
    step: Array,
    group: Array,
    anchor: Array,
    mask: Array,
    *,
    gamma: ArrayLike,
) -> Array:
    """Anchor states' values, the fixed point of mean backups.

    Rows stand in any order. Masked values, NaN included, have no effect. The value after the last
    row of an episode is 0, also where the limit of steps ended it. No error above 1e-5 of the
    group's largest reward or value was measured, also with gamma 1 (benchmarks/state_values.py).

    Args:
      reward: [N] f32, environment reward of the step.
      penalty: [N] f32, >= 0, penalty of the step's response.
      trajectory: [N] i32, trajectory of the step.
      step: [N] i32, index of the step in its trajectory, from 0.
      group: [N] i32, task group of the trajectory.
      anchor: [N, 2] u32, hash of the anchor state.
      mask: [N] bool, False for padding.
      gamma: Discount factor from step to step, from 0 to 1.

    Returns:
      [N] f32, the value of each row's state, 0 where masked.

    Raises:
      ValueError: A shape is wrong.
      TypeError: A dtype is wrong.
    """
    columns = StepColumns(reward, penalty, trajectory, step, group, anchor, mask)
    if check_columns(**present_columns(columns)) == 0:
        return jnp.zeros(0, jnp.float32)
    steps = order_steps(columns)
    return steps.restore(solve_values(build_graph(steps, gamma), steps.reward - steps.penalty))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Graph:
    """The graph of N ordered rows; one edge a row.

    Attributes:
      steps: The rows; `steps.anchor` numbers the nodes.
      gamma: Scalar f32, discount factor from step to step.
      member: [N] bool, rows that count in the means of their node.
      visits: [N] f32, number of members of the row's node and of its pseudo-visits; 1 if there is
        none.
      pseudo_visits: Scalar f32, number of pseudo-visits of each node.
      is_followed: [N] bool, True where the edge leads to another row.
      discount: [N] f32, gamma^w to the next row; 0 where there is none.
      interest: [N] f32, 1 - gamma^w; 0 where there is no next row.
      length: [N] f32, 1; 0 where the next row is of the same step.
    """

    steps: Steps
    gamma: Array
    member: Array
    visits: Array
    pseudo_visits: Array
    is_followed: Array
    discount: Array
    interest: Array
    length: Array

    def next_values(self, values: Array) -> Array:
        """Returns the value of the next row, [N], which is 0 at the end of an episode."""
        return jnp.where(self.is_followed, jnp.roll(values, -1), 0.0)

    def sum_rows(self, values: Array) -> Array:
        """Sums over the members of each row's node, [N] f32."""
        rows = len(values)
        # Rows outside carry N, which is no row; they get a value without meaning.
        node = jnp.minimum(self.steps.anchor, rows - 1)
        values = jnp.where(self.member, values, 0.0)
        return jax.ops.segment_sum(values, self.steps.anchor, rows)[node]

    def average(self, values: Array) -> Array:
        """Averages over the visits of each row's node, [N] f32; a pseudo-visit has the value 0."""
        mean = self.sum_rows(values) / self.visits
        # The second pass: a sum over thousands of visits loses digits that the sum of the
        # differences from the mean keeps. Where all values are equal, whitening would turn these
        # digits into advantages.
        return mean + self.sum_rows(values - mean) / self.visits

    def gae(self, reward: Array, value: Array, lam: ArrayLike) -> Array:
        """Estimates GAE advantages over the rows of each episode, [N] f32.

        The temporal difference of a row that is left out counts as 0.

        Args:
          reward: [N] f32, reward of each row, 0 where masked.
          value: [N] f32, value of each row's node, 0 where masked.
          lam: lambda.
        """
        error = reward + self.discount * self.next_values(value) - value
        # What is left of equal values is rounding, which whitening would blow up.
        is_rounding = jnp.abs(error) <= ROUNDING * largest_rewards(self.steps, reward)
        error = jnp.where(is_rounding | ~self.member, 0.0, error)
        steps = self.steps
        advantage, _ = segments.suffix_sums(error, steps.step, steps.trajectory, self.gamma * lam)
        return advantage


def build_graph(
    steps: Steps,
    gamma: ArrayLike,
    *,
    left_out: Array | None = None,
    pseudo_visits: ArrayLike = 0.0,
) -> Graph:
    """Builds the graph of ordered rows.

    Args:
      steps: N ordered rows.
      gamma: Discount factor from step to step, from 0 to 1.
      left_out: [N] bool, last rows of episodes that do not count in the means; None: all count.
      pseudo_visits: Number of pseudo-visits of each node; `solve_values` has their outcome.
    """
    # A last row leads to the end. Its roll would read a row of another episode.
    is_followed = following_values(steps, steps.valid, False)
    width = jnp.where(is_followed, jnp.roll(steps.step, -1) - steps.step, 1)
    # At gamma near 1 a power is wrong in the last digit of gamma^w, which is many of 1 - gamma^w.
    interest = -jnp.expm1(width * jnp.log1p(jnp.float32(gamma) - 1.0))
    member = steps.valid if left_out is None else steps.valid & ~left_out
    visits = segments.count_members(steps.anchor, member) + jnp.float32(pseudo_visits)
    return Graph(
        steps=steps,
        gamma=jnp.float32(gamma),
        member=member,
        # A state whose only rows are left out has no visits: its value is then 0, without
        # a division by 0.
        visits=jnp.where(visits > 0.0, visits, 1.0),
        pseudo_visits=jnp.float32(pseudo_visits),
        is_followed=is_followed,
        discount=jnp.where(is_followed, 1.0 - interest, 0.0),
        interest=jnp.where(is_followed, interest, 0.0),
        length=jnp.minimum(width, 1).astype(jnp.float32),
    )


def largest_rewards(steps: Steps, reward: Array) -> Array:
    """Returns the largest absolute reward of each row's group, [N] f32; 1 if all are 0."""
    largest = jax.ops.segment_max(jnp.abs(reward), steps.group, len(reward))[steps.group]
    return jnp.where(largest > 0.0, largest, 1.0)


def distances(graph: Graph, reaches_goal: Array) -> Array:
    """Finds the fewest edges from each node to the goal.

    Args:
      graph: Graph of N rows.
      reaches_goal: [N] bool, rows whose edge leads to the goal.

    Returns:
      [N] f32, the distance of each row's node, at least 1; infinite where no path leads to the
      goal.
    """
    steps = graph.steps
    rows = len(reaches_goal)
    node = jnp.minimum(steps.anchor, rows - 1)

    def shorten(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        distance, _ = carry
        onward = jnp.where(graph.is_followed, jnp.roll(distance, -1), jnp.inf) + graph.length
        # A row that reaches the goal is the last of its episode, so nothing else would
        # lead on from it.
        onward = jnp.where(reaches_goal, 1.0, onward)
        # A node is as near as the nearest of its rows: any episode may have known the way.
        shorter = jax.ops.segment_min(onward, steps.anchor, rows)[node]
        return shorter, jnp.any(shorter < distance)

    # Every round reaches the nodes that are one edge farther away.
    start = (jnp.full(rows, jnp.inf), jnp.any(reaches_goal))
    distance, _ = lax.while_loop(lambda carry: carry[1], shorten, start)
    return jnp.where(steps.valid, distance, jnp.inf)


def solve_values(graph: Graph, reward: Array, prior: Array | None = None) -> Array:
    """Finds the fixed point of mean backups.

    Each round corrects the values by an approximate solution for their residual, the mean of
    r + gamma V(g') - V(g). If that does not halve the largest residual, plain backups take the
    place of the correction; they reduce it by gamma^32 at least. The rounds end when a
    correction is at most 3e-6 of the largest reward, when float32 allows no further progress, or
    after 12 rounds.

    Args:
      graph: Graph of N rows.
      reward: [N] f32, reward of each row, 0 where masked.
      prior: [N] f32, outcome of a pseudo-visit, equal for the rows of a node; None: the mean return
        of the group. benchmarks/tabular_variants.py grades others.

    Returns:
      [N] f32, the value of each row's state, 0 where masked.
    """
    steps = graph.steps
    # Groups may have rewards of different size: each is solved in its own unit.
    unit = largest_rewards(steps, reward)
    reward = reward / unit

    def continues(carry: _Round) -> Array:
        number, _, _, _, largest, size, previous = carry
        # Residuals say little about errors: with gamma 1 a value may be wrong by the residual times
        # the expected number of steps to the end. But a correction is as large as the error before
        # it, so the error after a small one is smaller still.
        shrinks = size < previous / 2
        # Near the limit of float32 corrections stop shrinking; further rounds would only cost time.
        is_rounding = ~shrinks & (size < ALMOST_SETTLED) & (largest <= FINE_RESIDUAL)
        return (number < ROUNDS) & (size > SETTLED) & ~is_rounding

    def improve(carry: _Round) -> _Round:
        number, high, low, residual, largest, previous, _ = carry
        # Iterative refinement: BiCGSTAB solves for the remaining error alone, and the residual is
        # computed anew from the values. So a rough solution is enough.
        correction = _solve(graph, residual)
        corrected = _apply_correction(graph, reward, outcome, high, low, correction)
        succeeds = jnp.max(jnp.abs(corrected[2])) <= jnp.maximum(largest / 2, FINE_RESIDUAL)
        high, low, residual = lax.cond(
            succeeds,
            lambda: corrected,
            # A backup never raises the largest residual, which BiCGSTAB may: its residuals
            # are not monotone.
            lambda: _back_up(graph, reward, outcome, high, low, residual),
        )
        # Backups are small where they are slow, so their size says nothing about the error.
        size = jnp.where(succeeds, jnp.max(jnp.abs(correction)), jnp.inf)
        return number + 1, high, low, residual, jnp.max(jnp.abs(residual)), size, previous

    # Where no state recurs, the returns are the values. Their sums are bit-equal for equal futures,
    # so equal returns give differences of exactly 0.
    returns, _ = segments.suffix_sums(reward, steps.step, steps.trajectory, graph.gamma)
    outcome = _mean_over_groups(graph, returns) if prior is None else prior / unit
    high = graph.average(returns)
    low = jnp.zeros_like(high)
    residual = _residual(graph, reward, outcome, high, low)
    largest = jnp.max(jnp.abs(residual))
    unknown = jnp.full_like(largest, jnp.inf)
    # Returns that are the values but for rounding stay as they are.
    size = jnp.where(largest > FINE_RESIDUAL, unknown, 0.0)
    start = (jnp.int32(0), high, low, residual, largest, size, unknown)
    _, high, low, _, _, _, _ = lax.while_loop(continues, improve, start)
    return jnp.where(steps.valid, (high + low) * unit, 0.0)


def _mean_over_groups(graph: Graph, values: Array) -> Array:
    """Means over the members of each row's group, [N] f32."""
    steps = graph.steps
    count = jnp.maximum(segments.count_members(steps.group, graph.member), 1)
    members = jnp.where(graph.member, values, 0.0)
    return jax.ops.segment_sum(members, steps.group, len(values))[steps.group] / count


def _residual(graph: Graph, reward: Array, prior: Array, high: Array, low: Array) -> Array:
    """Averages the error of each state's backups, r + gamma V(g') - V(g) with V = high + low."""
    next_high = graph.next_values(high)
    # gamma V' - V = (V' - V) - (1 - gamma) V': neighbours have similar values, and the difference
    # of two similar numbers is exact.
    difference = (next_high - high) + (graph.next_values(low) - low)
    error = reward + difference - graph.interest * next_high
    pseudo_error = graph.pseudo_visits * (prior - high - low)
    return (graph.sum_rows(error) + pseudo_error) / graph.visits


def _solve(graph: Graph, residual: Array) -> Array:
    """Approximates the correction for a residual, [N] f32; it is 0 where BiCGSTAB fails."""

    def subtract_backup(values: Array) -> Array:
        return values - graph.sum_rows(graph.discount * jnp.roll(values, -1)) / graph.visits

    # The matrix is never built: the product with it is one backup without rewards.
    # With 60 iterations slow modes would remain where episodes have thousands of steps.
    correction, _ = bicgstab(subtract_backup, residual, tol=1e-3, maxiter=100)
    # BiCGSTAB breaks down where one of its inner products is 0; it then divides by 0.
    return jnp.where(jnp.isfinite(correction), correction, 0.0)


def _apply_correction(
    graph: Graph, reward: Array, prior: Array, high: Array, low: Array, correction: Array
) -> tuple[Array, Array, Array]:
    """Values and residual after a correction."""
    high, low = _add_exactly(high, low, correction)
    return high, low, _residual(graph, reward, prior, high, low)


def _back_up(
    graph: Graph, reward: Array, prior: Array, high: Array, low: Array, residual: Array
) -> tuple[Array, Array, Array]:
    """Values and residual after plain backups."""

    def add_residual(_: int, values: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        return _apply_correction(graph, reward, prior, *values)

    return lax.fori_loop(0, BACKUPS, add_residual, (high, low, residual))


def _add_exactly(high: Array, low: Array, addend: Array) -> tuple[Array, Array]:
    """Adds to `high + low` nearly exactly: `low` keeps digits that do not fit into `high`.

    The algorithm is two-sum.
    """
    # The last corrections are near 2e-7, and float32 numbers near 1 are 1.2e-7 apart.
    total = high + addend
    virtual = total - high
    error = (high - (total - virtual)) + (addend - virtual)
    return total, low + error
