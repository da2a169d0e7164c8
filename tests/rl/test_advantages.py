import itertools

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigpo_jax.core.errors import InputError
from gigpo_jax.rl.advantages import Advantages, gigpo_advantages, measure_credit
from gigpo_jax.rl.algorithms import PRESETS
from gigpo_jax.rl.types import collect_columns
from tests.rl import oracle

Columns = dict[str, np.ndarray]
ROWS = 200  # one padded length, so that compiled code is shared
COMMON = {"gamma": 0.95, "step_weight": 1.0, "normalize": "mean_std"}
TRAJECTORY = {**COMMON, **PRESETS["paper"]}
STEP = {**COMMON, **PRESETS["verl_agent"]}


def columns(reward, penalty, trajectory, step, group, state, mask=None) -> Columns:
    state = np.asarray(state, np.uint32)
    return {
        "reward": np.asarray(reward, np.float32),
        "penalty": np.asarray(penalty, np.float32),
        "trajectory": np.asarray(trajectory, np.int32),
        "step": np.asarray(step, np.int32),
        "group": np.asarray(group, np.int32),
        "anchor": np.stack([state * np.uint32(7), np.uint32(2**32 - 1) - state], 1),
        "mask": np.ones(len(reward), bool) if mask is None else np.asarray(mask, bool),
    }


def padded(batch: Columns, rows: int = ROWS) -> Columns:
    """Adds masked rows that look like real ones."""
    missing = rows - len(batch["mask"])
    padding = {
        name: np.resize(column, (missing, *column.shape[1:])) for name, column in batch.items()
    }
    padding["mask"][:] = False
    return {name: np.concatenate([column, padding[name]]) for name, column in batch.items()}


def permuted(batch: Columns, order: np.ndarray) -> Columns:
    return {name: column[order] for name, column in batch.items()}


def random_batch(seed: int, *, shuffle: bool = True) -> Columns:
    """Groups of 1 to 7 trajectories, with shared states, gaps, penalties and masked rows.

    One trajectory is a single step.
    """
    rng = np.random.default_rng(seed)
    steps = []
    for group, members in enumerate((1, 4, 7, 2, 1)):
        for member in range(members):
            length = 1 if group == 4 else int(rng.integers(1, 14))
            won = rng.random() < 0.5
            for t in range(length):
                if t == 0 or rng.random() < 0.9:
                    reward = 10.0 * (won and t == length - 1) + (rng.random() < 0.1) * rng.normal()
                    steps.append(
                        (reward, 0.1 * (rng.random() < 0.3), member, t, group - 2, rng.integers(6))
                    )
    batch = columns(*zip(*steps))
    batch["mask"] = rng.random(len(steps)) < 0.9
    return permuted(batch, rng.permutation(len(steps))) if shuffle else batch


def random_columns(seed: int) -> Columns:
    """`random_batch` with the optional columns: few actions, the anchors of next rows, noise."""
    batch = random_batch(seed)
    rng = np.random.default_rng((seed, 1))
    rows = len(batch["mask"])
    steps = list(zip(batch["group"], batch["trajectory"], batch["step"]))
    row_numbers = {step: row for row, step in enumerate(steps)}
    next_rows = np.array([row_numbers.get((g, t, s + 1), rows) for g, t, s in steps])
    action = rng.integers(4, size=rows).astype(np.uint32)
    tokens = rng.integers(1, 10, rows).astype(np.int32)
    token_value = rng.normal(size=(rows, 9))
    return batch | {
        "action": np.stack([action * np.uint32(0x9E3779B1), action + np.uint32(3)], 1),
        "next_anchor": np.concatenate([batch["anchor"], np.zeros((1, 2), np.uint32)])[next_rows],
        **{
            name: rng.normal(size=rows).astype(np.float32)
            for name in ("entropy", "logprob", "value", "step_reward", "implicit_reward")
        },
        "tag": rng.integers(4, size=rows).astype(np.int32),
        "executable": rng.random(rows) < 0.7,
        "won": rng.random(20)[batch["trajectory"] % 20] < 0.5,
        "truncated": (next_rows == rows) & (rng.random(rows) < 0.3),
        "answer_logprob": -rng.exponential(size=rows).astype(np.float32),
        "task_deviation": rng.uniform(1.0, 6.0, size=int(max(batch["group"])) + 3)[
            batch["group"] + 2
        ].astype(np.float32),
        "hindsight_logprob": -rng.exponential(size=rows).astype(np.float32),
        "tokens": tokens,
        "token_value": np.where(np.arange(9) < tokens[:, None], token_value, 0.0).astype(
            np.float32
        ),
    }


def plan_columns(seed: int) -> Columns:
    """`random_columns` with columns of plans and forks, which other algorithms would read too."""
    batch = random_columns(seed)
    rng = np.random.default_rng((seed, 2))
    rows = len(batch["mask"])
    return batch | {
        # Episodes follow strategies in pairs; the first row of an episode may be one.
        "strategy": batch["trajectory"] // 2,
        "summary": (batch["step"] == 0) & (rng.random(rows) < 0.7),
        "plan_value": rng.normal(size=(rows, 3)).astype(np.float32),
        "plan_start": (rng.random(rows) < 0.4) | (batch["step"] == 0),
        "plan_changed": rng.random(rows) < 0.4,
        "token_part": rng.integers(-1, 3, (rows, 9)).astype(np.int32),
        "forked": batch["trajectory"] % 3 == 2,
        "past": batch["anchor"] // np.uint32(14) + np.uint32(1),
        "task_type": np.stack([batch["group"] % 2, batch["group"] * 0], 1).astype(np.uint32),
        "belief": rng.integers(3, size=(rows, 2)).astype(np.uint32),
        "belief_grade": rng.random((rows, 4)).astype(np.float32),
    }


def stacked(result: Advantages) -> np.ndarray:
    """[N, 3] f64: total, episode, step."""
    return np.stack([result.total, result.episode, result.step], 1).astype(np.float64)


SWITCHES = [
    dict(zip(("normalize", "episode_stats", "penalty_in", "singleton_episode", "ddof"), values))
    for values in itertools.product(
        ("mean_std", "mean"), ("trajectory", "step"), ("reward", "row"), ("zero", "raw"), (0, 1)
    )
]


@pytest.mark.slow
def test_equals_the_oracle_for_all_switches_unjitted():
    with jax.disable_jit():
        for seed, switches in enumerate(SWITCHES):
            batch = padded(random_batch(seed, shuffle=seed % 2 == 0))
            keywords = {
                "gamma": (0.95, 1.0, 0.3, 0.0)[seed % 4],
                "step_weight": (1.0, 0.5)[seed % 2],
                **switches,
            }
            result = stacked(gigpo_advantages(**batch, **keywords))
            expected = oracle.advantages(**batch, **keywords)
            np.testing.assert_allclose(
                result, expected, rtol=1e-4, atol=2e-5, err_msg=str(keywords)
            )


@pytest.mark.parametrize("switches", [TRAJECTORY, STEP, {**STEP, "normalize": "mean"}])
def test_equals_the_oracle_jitted(switches):
    for seed in range(8):
        batch = padded(random_batch(seed, shuffle=seed % 2 == 0))
        result = stacked(gigpo_advantages(**batch, **switches))
        expected = oracle.advantages(**batch, **switches)
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=2e-5)


# One task, gamma 1/2. Trajectory A: an invalid action (p = 0.1) in state s, then the goal (r = 10)
# from state u. B: nothing gained, from s. C: the goal at once, from s. The same states in another
# task do not matter: D is alone in its group.
BY_HAND = columns(
    reward=[0, 10, 0, 10, 4],
    penalty=[0.1, 0, 0, 0, 0],
    trajectory=[0, 0, 1, 2, 3],
    step=[0, 1, 0, 0, 0],
    group=[0, 0, 0, 0, 1],
    state=[1, 2, 1, 1, 1],
)
HALF = {"gamma": 0.5, "step_weight": 1.0, "eps": 0.0}


def test_paper_preset_by_hand():
    # The penalty is in the reward: R = 9.9, 0, 10 with mean 19.9 / 3 = 6.6333.
    episode = np.asarray([3.266667, 3.266667, -6.633333, 3.366667, 0.0])
    # G(A,0) = -0.1 + 10 / 2 = 4.9, G(B) = 0, G(C) = 10 share s, mean 14.9 / 3 = 4.9667; u was seen
    # once.
    step = np.asarray([-0.066667, 0.0, -4.966667, 5.033333, 0.0])
    result = gigpo_advantages(**padded(BY_HAND), **HALF, **PRESETS["paper"], normalize="mean")
    np.testing.assert_allclose(stacked(result)[:5, 1:], np.stack([episode, step], 1), atol=2e-6)
    # Unbiased variances: (3.266667^2 + 6.633333^2 + 3.366667^2) / 2 = 33.003333 over *trajectories*
    # and (0.066667^2 + 4.966667^2 + 5.033333^2) / 2 = 25.003333.
    result = gigpo_advantages(**padded(BY_HAND), **HALF, **PRESETS["paper"], normalize="mean_std")
    expected = np.stack([episode / np.sqrt(33.003333), step / np.sqrt(25.003333)], 1)
    np.testing.assert_allclose(stacked(result)[:5, 1:], expected, atol=2e-6)
    np.testing.assert_allclose(result.total[:5], expected.sum(1), atol=2e-6)


def test_verl_agent_preset_by_hand():
    # R = 10, 0, 10; the rows score 9.9, 10, 0, 10 with mean 29.9 / 4 = 7.475. D is alone: its raw
    # score 4.
    episode = np.asarray([2.425, 2.525, -7.475, 2.525])
    # G from raw rewards: 5, 0, 10 in s, and 0.1 off the first: 4.9, 0, 10.
    step = np.asarray([-0.066667, 0.0, -4.966667, 5.033333, 0.0])
    result = gigpo_advantages(**padded(BY_HAND), **HALF, **PRESETS["verl_agent"], normalize="mean")
    np.testing.assert_allclose(
        stacked(result)[:5, 1:], np.stack([[*episode, 4.0], step], 1), atol=2e-6
    )
    # Over *rows*: (2.425^2 + 2 * 2.525^2 + 7.475^2) / 3 = 24.835833.
    result = gigpo_advantages(
        **padded(BY_HAND), **HALF, **PRESETS["verl_agent"], normalize="mean_std"
    )
    expected = np.stack([[*(episode / np.sqrt(24.8358333)), 4.0], step / np.sqrt(25.0033333)], 1)
    np.testing.assert_allclose(stacked(result)[:5, 1:], expected, atol=2e-6)


def test_ddof_by_hand():
    # Scores 1 and 3: centred -1 and 1; standard deviation sqrt(2) unbiased, 1 biased.
    batch = padded(
        columns(
            reward=[1, 3],
            penalty=[0, 0],
            trajectory=[0, 1],
            step=[0, 0],
            group=[0, 0],
            state=[1, 2],
        )
    )
    for ddof, value in ((1, 2**-0.5), (0, 1.0)):
        result = gigpo_advantages(**batch, **{**TRAJECTORY, "ddof": ddof})
        np.testing.assert_allclose(result.episode[:2], [-value, value], rtol=1e-5)


def test_returns_discount_by_step_index_where_steps_are_missing():
    # A second trajectory makes each state comparable, with return 0.
    batch = padded(
        columns(
            reward=[1, 2, 4, 0, 0, 0],
            penalty=[0] * 6,
            trajectory=[0, 0, 0, 1, 1, 1],
            step=[0, 2, 5, 0, 2, 5],
            group=[0] * 6,
            state=[1, 2, 3, 1, 2, 3],
        )
    )
    result = gigpo_advantages(**batch, **{**TRAJECTORY, "gamma": 0.5, "normalize": "mean"})
    returns = np.asarray([1 + 2 / 4 + 4 / 32, 2 + 4 / 8, 4])
    np.testing.assert_allclose(result.step[:6], [*(returns / 2), *(-returns / 2)], rtol=1e-6)


@pytest.mark.parametrize("penalty", [0.1, 0.001])
def test_the_size_of_a_lone_penalty_counts_only_without_the_deviation(penalty):
    # 8 failed episodes of 5 steps; one of n equal scores is lower by p. It gets -p * (n - 1) / n,
    # and the deviation is p / sqrt(n): -(n - 1) / sqrt(n), with n = 8 episodes or 40 rows.
    steps = np.arange(40) % 5
    group = padded(
        columns(
            reward=[0] * 40,
            penalty=[penalty] + [0] * 39,
            trajectory=np.arange(40) // 5,
            step=steps,
            group=[0] * 40,
            state=steps,
        )
    )
    for switches, episode in ((TRAJECTORY, -7 / np.sqrt(8)), (STEP, -39 / np.sqrt(40))):
        result = gigpo_advantages(**group, **switches, eps=0.0)
        np.testing.assert_allclose(result.total[0], episode - 7 / np.sqrt(8), rtol=1e-4)
    result = gigpo_advantages(**group, **{**TRAJECTORY, "normalize": "mean"})
    np.testing.assert_allclose(result.total[0], -2 * penalty * 7 / 8, rtol=1e-5)


def test_penalties_do_not_divide_by_zero_where_all_returns_are_equal():
    # Both returns are 5; the row with the penalty would get -0.1 / eps.
    batch = padded(
        columns(
            reward=[5, 5],
            penalty=[0.1, 0],
            trajectory=[0, 1],
            step=[0, 0],
            group=[0, 0],
            state=[1, 2],
        )
    )
    result = gigpo_advantages(**batch, **{**TRAJECTORY, "penalty_in": "row"})
    np.testing.assert_array_equal(result.total, 0.0)


@pytest.mark.parametrize("switches", [TRAJECTORY, STEP])
def test_equal_returns_give_exactly_zero(switches):
    """Three penalties of 0.1 at different steps: the sums are equal although their order is not."""
    rng = np.random.default_rng(0)
    reward = []
    trajectory = []
    step = []
    for member in range(8):
        length = int(rng.integers(4, 20))
        rewards = np.zeros(length)
        rewards[rng.choice(length - 1, 3, replace=False)] -= 0.1
        rewards[-1] += 10.0
        reward += [*rewards]
        trajectory += [member] * length
        step += range(length)
    rows = len(reward)
    batch = padded(columns(reward, [0] * rows, trajectory, step, [0] * rows, range(rows)))
    result = gigpo_advantages(**batch, **switches)
    np.testing.assert_array_equal(result.total, 0.0)


@pytest.mark.parametrize("switches", [TRAJECTORY, STEP])
def test_equal_futures_give_exactly_zero_wherever_they_stand(switches):
    """Trajectories of unlike lengths that end alike, in states numbered from the end."""
    steps = [
        (0.3 * (t % 3) + 0.1, 0.0, m, s, 0, t)
        for m in range(7)
        for s, t in enumerate(range(m + 9, -1, -1))
    ]
    result = gigpo_advantages(**padded(columns(*zip(*steps))), **switches)
    np.testing.assert_array_equal(result.step, 0.0)
    assert np.any(np.asarray(result.episode) != 0.0)


def test_a_common_offset_costs_no_precision():
    batch = random_batch(5)
    batch["penalty"][:] = 0.0
    last_rows = {}
    for row in np.flatnonzero(batch["mask"]):
        episode = (batch["group"][row], batch["trajectory"][row])
        last_rows[episode] = max(last_rows.get(episode, row), row, key=lambda n: batch["step"][n])
    shifted = {**batch, "reward": batch["reward"].round(2)}
    plain = gigpo_advantages(**padded(shifted), **TRAJECTORY)
    shifted["reward"] = shifted["reward"].copy()
    shifted["reward"][list(last_rows.values())] += 4096.0
    offset = gigpo_advantages(**padded(shifted), **TRAJECTORY)
    np.testing.assert_allclose(offset.episode, plain.episode, atol=5e-3)


def test_step_advantages_of_an_anchor_group_sum_to_zero_and_episode_ones_of_a_group_too():
    batch = padded(random_batch(7))
    result = stacked(gigpo_advantages(**batch, **{**STEP, "singleton_episode": "zero"}))
    for group in np.unique(batch["group"]):
        rows = batch["mask"] & (batch["group"] == group)
        np.testing.assert_allclose(result[rows, 1].sum(), 0.0, atol=1e-4)
        for state in np.unique(batch["anchor"][:, 0]):
            np.testing.assert_allclose(
                result[rows & (batch["anchor"][:, 0] == state), 2].sum(), 0.0, atol=1e-4
            )


@pytest.mark.parametrize("switches", [TRAJECTORY, STEP])
def test_without_shared_states_gigpo_is_grpo(switches):
    batch = random_batch(8)
    batch["anchor"][:, 0] = np.arange(len(batch["mask"]))
    result = gigpo_advantages(**padded(batch), **switches)
    np.testing.assert_array_equal(result.step, 0.0)
    np.testing.assert_array_equal(result.total, result.episode)


def test_one_lane_or_one_group_apart_is_another_state():
    batch = columns(
        reward=[1, 2, 4, 8],
        penalty=[0] * 4,
        trajectory=[0, 1, 2, 3],
        step=[0] * 4,
        group=[0, 0, 0, 1],
        state=[5] * 4,
    )
    batch["anchor"][:] = [[5, 9], [5, 9], [5, 8], [5, 9]]
    result = gigpo_advantages(**padded(batch), **{**TRAJECTORY, "normalize": "mean"})
    np.testing.assert_array_equal(result.step[:4], [-0.5, 0.5, 0.0, 0.0])


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.randoms(use_true_random=False))
def test_neither_row_order_nor_what_padding_holds_matters(seed, random):
    batch = random_batch(seed, shuffle=False)
    whole = stacked(gigpo_advantages(**padded(batch), **STEP))
    changed = padded(batch)
    noise = np.random.default_rng(seed)
    hidden = ~changed["mask"]
    for name in ("trajectory", "step", "group"):
        changed[name][hidden] = noise.integers(-(2**31), 2**31 - 1, hidden.sum())
    changed["reward"][hidden] = np.nan
    order = np.asarray(random.sample(range(ROWS), ROWS))
    result = stacked(gigpo_advantages(**permuted(changed, order), **STEP))
    np.testing.assert_allclose(result, whole[order], rtol=1e-4, atol=1e-5)
    assert np.all(result[hidden[order]] == 0.0)


def test_all_masked_and_empty_batches_are_zero():
    batch = padded(random_batch(9))
    batch["mask"][:] = False
    np.testing.assert_array_equal(stacked(gigpo_advantages(**batch, **STEP)), 0.0)
    empty = {name: column[:0] for name, column in batch.items()}
    result = gigpo_advantages(**empty, **STEP)
    assert result.total.shape == (0,)
    assert float(measure_credit(result, collect_columns(**empty))["singleton_share"]) == 0.0


def test_large_identifiers_are_told_apart():
    top = 2**31 - 1
    batch = columns(
        reward=[1, 3, 5, 9],
        penalty=[0] * 4,
        trajectory=[top, top - 1, -top, top],
        step=[0] * 4,
        group=[top, top, -top - 1, 7],
        state=[1] * 4,
    )
    batch["anchor"][:] = 2**32 - 1
    result = gigpo_advantages(**padded(batch), **{**TRAJECTORY, "normalize": "mean"})
    np.testing.assert_array_equal(result.total[:4], [-2.0, 2.0, 0.0, 0.0])


def test_credit_by_hand():
    result = gigpo_advantages(**padded(BY_HAND), **HALF, **PRESETS["paper"], normalize="mean")
    batch = padded(BY_HAND)
    metrics = measure_credit(result, collect_columns(**batch))
    np.testing.assert_allclose(metrics["anchor_group_size_mean"], 5 / 3, rtol=1e-6)
    np.testing.assert_allclose(
        [metrics["singleton_share"], metrics["zero_advantage_share"]], [2 / 5, 1 / 5], rtol=1e-6
    )
    episode = np.asarray([3.266667, 3.266667, -6.633333, 3.366667, 0.0])
    step = np.asarray([-0.066667, 0.0, -4.966667, 5.033333, 0.0])
    np.testing.assert_allclose(metrics["episode_norm"], np.sqrt(np.mean(episode**2)), rtol=1e-5)
    np.testing.assert_allclose(metrics["step_norm"], np.sqrt(np.mean(step**2)), rtol=1e-5)


def test_misuse_is_named():
    batch = padded(BY_HAND)
    with pytest.raises(InputError, match="normalize='std': must be one of 'mean_std', 'mean'"):
        gigpo_advantages(**batch, **{**STEP, "normalize": "std"})
    with pytest.raises(InputError, match="ddof=2"):
        gigpo_advantages(**batch, **{**STEP, "ddof": 2})
    with pytest.raises(TypeError, match="anchor must be of type uint32"):
        gigpo_advantages(**{**batch, "anchor": batch["anchor"].astype(np.int32)}, **STEP)
    with pytest.raises(TypeError, match="mask must be of type bool"):
        gigpo_advantages(**{**batch, "mask": batch["mask"].astype(np.int32)}, **STEP)
    with pytest.raises(ValueError, match="anchor must have shape"):
        gigpo_advantages(**{**batch, "anchor": batch["anchor"][:, 0]}, **STEP)
    with pytest.raises(ValueError, match="differ in length"):
        gigpo_advantages(**{**batch, "step": batch["step"][:-1]}, **STEP)
