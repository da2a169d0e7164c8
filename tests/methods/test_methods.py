"""Methods against the numbers of their sources, against oracles on random batches, and what they
reduce to.
"""

import functools
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest

from gigpo_jax.rl.algorithms import PRESETS, find_algorithm, make_advantages
from gigpo_jax.rl.types import collect_columns
from tests.methods import oracle
from tests.rl import oracle as gigpo_oracle
from tests.rl.test_advantages import Columns, columns, padded, random_columns

COMMON = {"gamma": 0.9, "step_weight": 1.0, "normalize": "mean_std"}
SEEDS = range(4)
SWITCHES = [
    ("paper", "mean_std"),
    pytest.param("verl_agent", "mean", marks=pytest.mark.slow),
]


@functools.cache
def compiled(name: str, preset: str, **settings):
    return jax.jit(make_advantages(name, preset, **COMMON | settings))


def compiled_total(batch: Columns, name: str, preset: str = "paper", **settings) -> np.ndarray:
    """[N] f64, the total advantage; all batches have one padded length, so code is compiled
    once.
    """
    found = compiled(name, preset, **settings)(collect_columns(**padded(batch)))
    return np.asarray(found.total, np.float64)[: len(batch["mask"])]


def total(batch: Columns, name: str, preset: str = "paper", **settings) -> np.ndarray:
    """As `compiled_total`, operation by operation: methods share their compiled operations."""
    with jax.disable_jit():
        found = make_advantages(name, preset, **COMMON | settings)(collect_columns(**padded(batch)))
    return np.asarray(found.total, np.float64)[: len(batch["mask"])]


def hashes(*numbers: int) -> np.ndarray:
    return np.array([(n * 7, n) for n in numbers], np.uint32)


def episode_advantage(batch: Columns, preset: str, normalize: str, **changed) -> np.ndarray:
    """[N] f64 of the oracle."""
    settings = {**COMMON, **PRESETS[preset], "normalize": normalize, **changed}
    seven = {
        name: batch[name]
        for name in ("reward", "penalty", "trajectory", "step", "group", "anchor", "mask")
    }
    return gigpo_oracle.advantages(**seven, **settings)[:, 1]


def check(got: np.ndarray, want: np.ndarray, about: object) -> None:
    np.testing.assert_allclose(got, want, rtol=2e-4, atol=3e-5, err_msg=str(about))
    assert np.any(want)


X, Y, Z, W, V, U = range(1, 7)
# Three episodes of three steps: X,Y,Z wins; X,Y,W does not; V,Y,U wins.
THREE = columns([0, 0, 1, 0, 0, 0, 0, 0, 1], [0] * 9, [0] * 3 + [1] * 3 + [2] * 3, [0, 1, 2] * 3, [0] * 9,
                [X, Y, Z, X, Y, W, V, Y, U])  # fmt: skip


def test_hgpo_by_hand() -> None:
    got = total(THREE, "hgpo", gamma=0.5, normalize="mean", history=1)
    want = [0.125, 0.2167, 0, -0.125, -0.2833, 0, 0, 0.1667, 0]
    np.testing.assert_allclose(got, want, atol=6e-5)


def test_salt_by_hand() -> None:
    # Returns 1, 0, 0. The first two episodes share the edge (X, 1, Y).
    batch = columns(
        [0, 1, 0, 0, 0, 0], [0] * 6, [0, 0, 1, 1, 2, 2], [0, 1] * 3, [0] * 6, [X, Y, X, Y, X, Z]
    )
    batch |= {"action": hashes(1, 2, 1, 3, 4, 2), "next_anchor": hashes(Y, 0, Y, 0, Z, 0)}
    got = total(batch, "salt")
    np.testing.assert_allclose(got, [0.2887, 1.1547, 0.2887, -0.5774, -0.5774, -0.5774], atol=1e-4)


def test_empg_by_hand() -> None:
    # Two episodes of two steps with advantages 1 and -1: R = 2 and 0 without a standard deviation.
    batch = columns([0, 2, 0, 0], [0] * 4, [0, 0, 1, 1], [0, 1, 0, 1], [0] * 4, [X, Y, X, Y])
    batch["entropy"] = np.array([0.2, 0.6, 0.4, 1.0], np.float32)
    got = total(batch, "empg", normalize="mean")
    np.testing.assert_allclose(got, [1.3040, 0.7020, -1.2923, -0.7137], atol=1e-4)
    # All equally certain: nothing is scaled, and first steps have the bonus 0.05 - 0.025.
    batch["entropy"] = np.full(4, 0.3, np.float32)
    got = total(batch, "empg", normalize="mean")
    np.testing.assert_allclose(got, [1.025, 0.975, -0.975, -1.025], atol=1e-6)


def test_repeat_discount_by_hand() -> None:
    # Actions 5, 6, 5, 6 of a winner and 5, 5, 5 of a loser; A = 1 and -1.
    batch = columns(
        [0, 0, 0, 2, 0, 0, 0], [0] * 7, [0] * 4 + [1] * 3, [0, 1, 2, 3, 0, 1, 2], [0] * 7, [X] * 7
    )
    batch["action"] = hashes(5, 6, 5, 6, 5, 5, 5)
    got = total(batch, "repeat_discount", normalize="mean")
    once = (0.8 + 1) / 2
    twice = (0.8**2 + 0.95) / 2
    np.testing.assert_allclose(
        got, [1, 1, once, (0.8 + 0.95) / 2, -1, -(2 - once), -(2 - twice)], rtol=1e-6
    )


def test_response_weight_by_hand() -> None:
    batch = random_columns(7)
    np.testing.assert_array_equal(
        total(batch, "response_weight", base="rloo"), total(batch, "rloo")
    )
    weights = find_algorithm("response_weight").token_weights
    assert weights(np.array([False, True, True, False]), base="grpo", thought=0.25).tolist() == [
        0.25,
        1,
        1,
        0.25,
    ]


def test_tree_by_hand() -> None:
    # Two episodes reach Y by actions in another order (one node), one reaches it without them
    # (another node).
    batch = columns([0, 0, 3, 0, 0, 0, 0, 0], [0] * 8, [0] * 3 + [1] * 3 + [2] * 2, [0, 1, 2, 0, 1, 2, 0, 1], [0] * 8,
                    [X, Z, Y, X, W, Y, X, Y])  # fmt: skip
    batch["action"] = hashes(1, 2, 3, 2, 1, 4, 5, 3)
    got = total(batch, "tree", normalize="mean")
    # Returns 3, 0, 0 with mean 1. X: all three. Y after {1, 2}: 3 and 0. Z: 3. W and Y after {5}:
    # 0.
    np.testing.assert_allclose(got, [0, 2, 0.5, 0, -1, 0.5, 0, -1], atol=1e-6)


def test_igpo_by_hand() -> None:
    # A has three turns and answers right, B two and wrong.
    batch = columns([0, 0, 1, 0, 0], [0] * 5, [0] * 3 + [1] * 2, [0, 1, 2, 0, 1], [0] * 5, [X] * 5)
    batch["answer_logprob"] = np.array([-2, -1.5, -0.5, -2, -1.8], np.float32)
    got = total(batch, "igpo", gamma=1.0)
    np.testing.assert_allclose(got, [1.6144, 1.7793, 0.7071, -1.6144, -0.7071], atol=1e-4)


def test_a2tgpo_by_hand() -> None:
    # The first turns gain exp(-1) - exp(-2) and 0: u = 1 and -1; A's second turn is alone with its
    # index.
    batch = columns([0, 0, 1, 0, 0], [0] * 5, [0] * 3 + [1] * 2, [0, 1, 2, 0, 1], [0] * 5, [X] * 5)
    batch["answer_logprob"] = np.array([-2, -1, -0.5, -3, -3], np.float32)
    found = compiled("a2tgpo", "paper", gamma=1.0)(collect_columns(**padded(batch)))
    want = [0.3 / np.sqrt(2) + 0.7071, 0.7071, 0.7071, -0.3 - 0.7071, -0.7071]
    np.testing.assert_allclose(found.total[:5], want, atol=1e-4)
    sigmoid = 1 / (1 + np.exp(-1.0))
    np.testing.assert_allclose(
        found.clip_scale[:5], [0.7 + 0.6 * sigmoid, 1, 1, 1.3 - 0.6 * sigmoid, 1], atol=1e-5
    )
    # Gains of 2e-4 and 0: the constants in the divisor count.
    batch["answer_logprob"] = np.log(np.array([0.1, 0.1002, 0.1002, 0.1, 0.1], np.float32))
    found = compiled("a2tgpo", "paper", gamma=1.0)(collect_columns(**padded(batch)))
    u = 1e-4 / (np.sqrt(2e-8) + 1e-6)
    np.testing.assert_allclose(found.total[0], 0.3 * u / np.sqrt(2) + 0.7071, atol=2e-4)


def test_rlvmr_by_hand() -> None:
    # Two episodes without a return: planning 1, 0; explore 1, 0, 1; reflection 1 alone.
    batch = columns([0] * 6, [0] * 6, [0, 0, 0, 1, 1, 1], [0, 1, 2] * 2, [0] * 6, [X] * 6)
    batch |= {
        "tag": np.array([1, 2, 3, 1, 2, 2], np.int32),
        "step_reward": np.array([1, 1, 1, 0, 0, 1], np.float32),
    }
    got = total(batch, "rlvmr")
    np.testing.assert_allclose(got, [0.7071, 0.5774, 1, -0.7071, -1.1547, 0.5774], atol=1e-4)


def test_oprl_by_hand() -> None:
    # The example of the paper's formula: r = .2, .1 in a won episode, -.1, 0 in a lost one.
    batch = columns([0, 1, 0, 0], [0] * 4, [0, 0, 1, 1], [0, 1] * 2, [0] * 4, [X, Y] * 2)
    batch |= {"implicit_reward": np.array([0.2, 0.1, -0.1, 0.0], np.float32)}
    for weight in (1.0, 0.5):
        got = total(batch, "oprl", step_weight=weight)
        want = np.array([1.1619, 0.3873, -1.1619, -0.3873]) * weight
        outcome = np.array([0.7071, 0.7071, -0.7071, -0.7071])
        np.testing.assert_allclose(got, want + outcome, atol=1e-4)
    # Rows of another task are not compared with these.
    other = columns([0, 0], [0] * 2, [0, 1], [0] * 2, [1] * 2, [X] * 2)
    other |= {"implicit_reward": np.array([7.0, 9.0], np.float32)}
    both = {name: np.concatenate([batch[name], other[name]]) for name in batch}
    np.testing.assert_allclose(total(both, "oprl")[:4], total(batch, "oprl"), atol=1e-6)


def spa_columns() -> Columns:
    """An episode that won 1 and one that lost; c at the last token of each response."""
    batch = columns([0, 0, 1, 0, 0], [0.3] * 5, [0, 0, 0, 1, 1], [0, 1, 2, 0, 1], [0] * 5, [X] * 5)
    nine = 9.0  # of tokens before the last one
    return batch | {
        "tokens": np.array([1, 3, 2, 2, 1], np.int32),
        "token_value": np.array(
            [[0.1, 0, 0], [nine, nine, 0.3], [nine, 0.6, 0], [nine, 0.2, 0], [0.4, 0, 0]],
            np.float32,
        ),
        "executable": np.array([True, False, False, False, True]),
    }


def test_spa_rl_by_hand() -> None:
    """r = .6, .3, 1.1 is the example of the paper's formula; the other episode has .2, .9."""
    batch = spa_columns()
    # Returns of steps at one anchor state and the episodes, undiscounted, with means alone.
    settings = {"gamma": 1.0, "normalize": "mean"}
    got = total(batch, "spa_rl", **settings)
    reward = np.array([0.6, 0.3, 1.1, 0.2, 0.9], np.float32)
    plain = batch | {"reward": reward, "penalty": np.zeros(5, np.float32)}
    np.testing.assert_allclose(got, total(plain, "gigpo", **settings), atol=1e-6)
    np.testing.assert_allclose(got[:3] - got[0], [0, 1.4 - 2.0, 1.1 - 2.0], atol=1e-6)
    found = compiled("spa_rl", "paper", **settings)(collect_columns(**padded(batch)))
    # Sums of c: 1.0 for the outcome 1, 0.6 for 0.
    targets = np.asarray(found.target)[:5]
    want = np.full((5, 3), np.nan)
    want[[0, 1, 2, 3, 4], [0, 2, 1, 1, 0]] = [0.1, 0.3, 0.6, -0.1, 0.1]
    np.testing.assert_allclose(targets, want, atol=1e-6)


def test_spa_rl_grounds_no_summary() -> None:
    batch = spa_columns()
    batch["token_value"][:] = 0.0
    batch["executable"][:] = False
    # Before the last step of the first episode, and with its number.
    batch["summary"] = np.array([False, True, False, False, False])
    batch["step"] = np.array([0, 1, 1, 0, 1], np.int32)
    # Last steps alone have 2, so both episodes have 2: with a grounded summary one would have 4.
    assert not total(batch, "spa_rl", base="grpo").any()


def test_spa_rl_without_progress_and_grounding_has_rewards_of_last_steps() -> None:
    batch = spa_columns()
    batch["token_value"][:] = 0.0
    batch["executable"][:] = False
    got = total(batch, "spa_rl", base="grpo")
    assert not got.any()  # each of the two episodes has 2


# Two tasks: three episodes with returns 10, 0, 0, and one episode that wins alone.
TWO_TASKS = columns([0, 10, 0, 0, 0, 10], [0] * 6, [0, 0, 1, 1, 2, 0], [0, 1, 0, 1, 0, 0],
                    [0] * 5 + [1], [X, Y, X, Y, X, X])  # fmt: skip


def test_max_rl_by_hand() -> None:
    for preset in PRESETS:  # mean 10 / 3: (10 - 10 / 3) / (10 / 3) = 2, and -1
        np.testing.assert_allclose(
            total(TWO_TASKS, "max_rl", preset), [2, 2, -1, -1, -1, 0], rtol=1e-6
        )
    penalty = np.array([0, 0, 0.1, 0, 0, 0], np.float32)
    got = total(TWO_TASKS | {"penalty": penalty}, "max_rl", "verl_agent")
    np.testing.assert_allclose(got, [2, 2, -1.03, -1, -1, 0], rtol=1e-5)
    lost = TWO_TASKS | {"reward": np.zeros(6, np.float32), "penalty": penalty}
    assert not total(lost, "max_rl").any()
    # Rewards below 0 have no meaning in units of their mean.
    assert not total(TWO_TASKS | {"reward": -TWO_TASKS["reward"]}, "max_rl").any()


def test_lite_ppo_by_hand() -> None:
    # Returns 10, 0, 0 and 10: mean 5, deviation 10 / sqrt(3).
    want = np.array([20 / 3, 20 / 3, -10 / 3, -10 / 3, -10 / 3, 0]) * np.sqrt(3) / 10
    for preset in PRESETS:
        np.testing.assert_allclose(total(TWO_TASKS, "lite_ppo", preset), want, rtol=1e-5)
    assert not total(TWO_TASKS | {"reward": np.zeros(6, np.float32)}, "lite_ppo").any()


def test_ema_grpo_by_hand() -> None:
    # Returns 10, 0, 0 with mean 10 / 3 in the first task; the second one has a single episode.
    deviation = np.full(6, 4.0, np.float32)
    for preset in PRESETS:
        got = total(TWO_TASKS | {"task_deviation": deviation}, "ema_grpo", preset)
        want = np.array([5 / 3, 5 / 3, -5 / 6, -5 / 6, -5 / 6, 0])
        np.testing.assert_allclose(got, want, rtol=1e-5)
    # (20 / 3) / 1 is beyond the guard: the group has its own deviation, 10 sqrt(2) / 3.
    narrow = TWO_TASKS | {"task_deviation": np.ones(6, np.float32)}
    want = np.sqrt(np.array([2, 2, 0.5, 0.5, 0.5, 0])) * [1, 1, -1, -1, -1, 0]
    np.testing.assert_allclose(total(narrow, "ema_grpo"), want, rtol=1e-5)
    # A penalty of 3 in an episode that fails: returns 10, -3, 0 with mean 7 / 3.
    penalty = np.array([0, 0, 3, 0, 0, 0], np.float32)
    got = total(TWO_TASKS | {"task_deviation": deviation, "penalty": penalty}, "ema_grpo")
    np.testing.assert_allclose(got, np.array([23, 23, -16, -16, -7, 0]) / 12, rtol=1e-5)
    equal = {"task_deviation": np.full(6, 1e-3, np.float32), "reward": np.zeros(6, np.float32)}
    assert not total(TWO_TASKS | equal, "ema_grpo").any()


def test_hcapo_by_hand() -> None:
    # One winner and one loser of two steps each; probabilities in hindsight 0.7, 0.3 and 0.5, 0.5.
    batch = columns([0, 10, 0, 0], [0] * 4, [0, 0, 1, 1], [0, 1, 0, 1], [0] * 4, [X, Y, X, Y])
    batch["hindsight_logprob"] = np.log(np.array([0.7, 0.3, 0.5, 0.5], np.float32)) * 5
    own = {"gamma": 0.5, "normalize": "mean"}
    got = total(batch, "hcapo", **own)
    # rho 1.2 and 0.8 (clipped): Q = 1.2 * 2.5 and 0.8 * 5, then 0 and 0; their mean is 1.75.
    # A_E = 5 and -5.
    np.testing.assert_allclose(got, [6.25, 7.25, -6.75, -6.75], rtol=1e-6)
    # With gamma 0.1 the first step of the winner is below the mean of the group, and counts as 0.
    got = total(batch, "hcapo", **own | {"gamma": 0.1})
    q = np.array([1.2 * 0.1, 0.8, 0, 0])
    want = [5, 5 + 0.8 - q.mean(), -5 - q.mean(), -5 - q.mean()]
    np.testing.assert_allclose(got, want, rtol=1e-6)
    assert not total(batch | {"reward": np.zeros(4, np.float32)}, "hcapo", **own).any()
    alone = {name: column[:2] for name, column in batch.items()}
    np.testing.assert_allclose(total(alone, "hcapo", **own | {"gamma": 1.0}), [2, 0], atol=1e-5)


def expected_totals(
    batch: Columns, preset: str, normalize: str
) -> Iterator[tuple[str, dict[str, Any], np.ndarray]]:
    """Methods, their settings, and the oracle's total advantages."""
    grpo = episode_advantage(batch, preset, normalize)
    without_deviation = episode_advantage(batch, preset, "mean")
    gamma, step_weight = COMMON["gamma"], COMMON["step_weight"]
    scale = {"normalize": normalize, "ddof": 1}
    penalty = {"penalty_in": PRESETS[preset]["penalty_in"]}
    for own in ({"history": 2, "alpha": 1.0}, {"history": 4, "alpha": 0.5}):
        levels = {"gamma": gamma, "weight_offset": 1, "normalize": normalize}
        yield "hgpo", own, oracle.hgpo(batch, **own, **levels, **penalty)
    yield "salt", {}, oracle.salt(batch, grpo)
    yield "empg", {"k": 0.7}, oracle.empg(batch, grpo, k=0.7, k_next=1.0, zeta=0.05)
    yield (
        "repeat_discount",
        {"repeat": 0.6},
        oracle.repeat_discount(batch, grpo, repeat=0.6, pair=0.95),
    )
    yield "tree", {}, oracle.tree(batch, **scale, **penalty)
    yield "rlvmr", {}, oracle.rlvmr(batch, grpo, step_weight=step_weight, **scale)
    yield "oprl", {}, oracle.oprl(batch, grpo, step_weight=step_weight, **scale)
    yield "igpo", {}, oracle.igpo(batch, gamma=gamma, **penalty)
    baseline = oracle.reinforce_pp_baseline(batch, without_deviation, **scale)
    yield "reinforce_pp_baseline", {}, baseline
    yield "max_rl", {}, oracle.max_rl(batch, **penalty)
    yield "lite_ppo", {}, oracle.lite_ppo(batch, ddof=1, **penalty)
    yield "ema_grpo", {}, oracle.ema_grpo(batch, guard=5.0)
    hindsight = {"temperature": 5.0, "ratio_clip": 0.2}
    yield "hcapo", {}, oracle.hcapo(batch, grpo, **COMMON | scale, **hindsight)


@pytest.mark.parametrize(("preset", "normalize"), SWITCHES)
def test_methods_equal_their_oracles(preset: str, normalize: str) -> None:
    for seed in SEEDS:
        batch = random_columns(seed)
        for name, settings, want in expected_totals(batch, preset, normalize):
            got = compiled_total(batch, name, preset, normalize=normalize, **settings)
            check(got, want, (name, seed, settings))


@pytest.mark.parametrize(("preset", "normalize"), SWITCHES)
def test_spa_rl_equals_its_oracle(preset: str, normalize: str) -> None:
    """Its advantages are GiGPO's with other rewards; its targets are at the last tokens of steps."""
    for seed in SEEDS:
        batch = random_columns(seed)
        reward, target = oracle.spa_rewards(batch, grounding=0.5)
        dense = batch | {"reward": reward.astype(np.float32), "penalty": 0 * batch["penalty"]}
        want = compiled_total(dense, "gigpo", preset, normalize=normalize)
        check(compiled_total(batch, "spa_rl", preset, normalize=normalize), want, seed)
        found = compiled("spa_rl", preset, normalize=normalize)(collect_columns(**padded(batch)))
        used = np.flatnonzero(batch["mask"])
        last = np.asarray(found.target)[used, batch["tokens"][used] - 1]
        check(last, target[used], seed)
        assert np.isfinite(np.asarray(found.target)).sum() == len(used)


@pytest.mark.parametrize(("preset", "normalize"), SWITCHES)
def test_a2tgpo_equals_its_oracle(preset: str, normalize: str) -> None:
    """Advantages, and the factor of the clip range."""
    settings = {"gamma": COMMON["gamma"], "penalty_in": PRESETS[preset]["penalty_in"]}
    for seed in SEEDS:
        batch = random_columns(seed)
        want = oracle.a2tgpo(batch, **settings, alpha=0.3, clip_scale=0.3)
        found = compiled("a2tgpo", preset, normalize=normalize)(collect_columns(**padded(batch)))
        check(found.total[: len(want)], want[:, 0], seed)
        check(found.clip_scale[: len(want)], want[:, 1], seed)


def test_hgpo_with_one_level_is_the_step_part_of_gigpo() -> None:
    batch = random_columns(5)
    step = make_advantages("gigpo", "paper", **COMMON, ddof=0)(
        collect_columns(**padded(batch))
    ).step
    got = total(batch, "hgpo", history=0)
    np.testing.assert_allclose(got, np.asarray(step)[: len(got)], rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("base", ["rloo", pytest.param("hgpo", marks=pytest.mark.slow)])
def test_wrappers_without_effect_are_their_base(base: str) -> None:
    batch = random_columns(6)
    plain = total(batch, base)
    used = batch["mask"]
    alone = batch | {"action": hashes(*range(len(plain)))}  # no two edges are equal
    np.testing.assert_allclose(total(alone, "salt", base=base), plain, rtol=1e-6)
    np.testing.assert_allclose(
        total(alone, "repeat_discount", base=base, repeat=0.5), plain, rtol=1e-6
    )
    # With k = 0 only the bonus is left.
    bonus = oracle.empg(batch, 0.0 * plain, k=0.0, k_next=1.0, zeta=0.05)
    got = total(batch, "empg", base=base, k=0.0)
    want = plain[used] - plain[used].mean() + bonus[used]
    np.testing.assert_allclose(got[used], want, rtol=1e-5, atol=1e-6)
