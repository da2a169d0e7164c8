import jax.numpy as jnp
import numpy as np
import pytest

from gigpo_jax.rl.advantages import Advantages, gigpo_advantages
from gigpo_jax.rl.algorithms import PRESETS, make_advantages
from gigpo_jax.rl.gae import Gae, step_gae, token_gae, value_metrics, whiten
from gigpo_jax.rl.types import StepColumns, collect_columns
from tests.rl import oracle
from tests.rl.test_advantages import random_batch, random_columns

CHAINS = ("trajectory", "step", "group", "mask")  # columns that say which row follows which


def steps(seed: int) -> dict[str, np.ndarray]:
    """Several groups of shuffled rows with gaps, masked rows and random values; what is masked is
    NaN.
    """
    batch = random_batch(seed)
    rng = np.random.default_rng(seed)
    value = rng.normal(size=len(batch["mask"])).astype(np.float32)
    columns = {"reward": batch["reward"] - batch["penalty"], "value": value}
    columns = {
        name: np.where(batch["mask"], x, np.nan).astype(np.float32) for name, x in columns.items()
    }
    return columns | {name: batch[name] for name in CHAINS}


def tokens(seed: int) -> dict[str, np.ndarray]:
    """As `steps`, with a value for each of up to 9 tokens, tokens masked anywhere, NaN where
    masked.
    """
    columns = steps(seed)
    rng = np.random.default_rng(seed)
    shape = (len(columns["mask"]), 9)
    mask = rng.random(shape) < 0.6
    mask[np.arange(len(mask)), rng.integers(9, size=len(mask))] = True
    value = np.where(mask & columns["mask"][:, None], rng.normal(size=shape), np.nan).astype(
        np.float32
    )
    return columns | {"value": value, "token_mask": mask}


def both(result: Gae) -> np.ndarray:
    """Advantage and target along a last axis, f64."""
    return np.stack([result.advantage, result.target], -1).astype(np.float64)


def test_the_worked_example() -> None:
    one = jnp.zeros(3, jnp.int32)
    got = step_gae(
        jnp.array([0.0, 0.0, 1.0]),
        jnp.array([0.4, 0.5, 0.7]),
        one,
        jnp.arange(3),
        one,
        one == 0,
        gamma=0.99,
        lam=0.9,
    )
    np.testing.assert_allclose(got.advantage, [0.5051, 0.4603, 0.3], atol=5e-5)
    np.testing.assert_allclose(got.target, [0.9051, 0.9603, 1.0], atol=5e-5)
    row = token_gae(
        jnp.array([[0.0, 9.0, 0.0, 1.0]]),  # the masked token changes nothing
        jnp.array([[0.4, 9.0, 0.5, 0.7]]),
        jnp.array([[True, False, True, True]]),
        gamma=0.99,
        lam=0.9,
    )
    np.testing.assert_allclose(row.advantage, [[0.5051, 0.0, 0.4603, 0.3]], atol=5e-5)
    np.testing.assert_allclose(row.target, [[0.9051, 0.0, 0.9603, 1.0]], atol=5e-5)


COMMON = {"gamma": 0.9, "step_weight": 1.0, "normalize": "mean_std"}
HOW = [{"gamma": gamma, "lam": lam} for gamma in (0.95, 1.0, 0.0) for lam in (0.9, 1.0, 0.0)]


# In `make test` each gamma and each lambda once.
@pytest.mark.parametrize(
    "seed",
    [seed if seed % 4 == 0 else pytest.param(seed, marks=pytest.mark.slow) for seed in range(9)],
)
def test_equals_the_oracle(seed: int) -> None:
    how = HOW[seed]
    rows = steps(seed)
    words = tokens(seed)
    np.testing.assert_allclose(
        both(step_gae(**rows, **how)), oracle.step_gae(**rows, **how), atol=2e-5
    )
    per_token = {"value": words["value"], "mask": words["token_mask"] & words["mask"][:, None]}
    per_token["reward"] = np.where(per_token["mask"], words["value"] ** 2, np.nan)
    np.testing.assert_allclose(
        both(token_gae(**per_token, **how)), oracle.token_gae(**per_token, **how), atol=2e-5
    )


def test_no_value_and_lambda_1_is_the_discounted_return() -> None:
    batch = random_batch(5)
    rows = {name: batch[name] for name in CHAINS}
    got = step_gae(batch["reward"], np.zeros_like(batch["reward"]), **rows, gamma=0.9, lam=1.0)
    # Each group is one anchor state and nothing is divided: the step advantage is the return minus
    # its group's mean.
    batch["anchor"], batch["penalty"] = (
        np.zeros_like(batch["anchor"]),
        np.zeros_like(batch["penalty"]),
    )
    how = PRESETS["paper"] | {"gamma": 0.9, "step_weight": 1.0, "normalize": "mean"}
    stepwise = np.asarray(gigpo_advantages(**batch, **how).step)
    assert np.any(stepwise != 0.0)
    for group in np.unique(batch["group"]):
        member = batch["mask"] & (batch["group"] == group)
        returns = np.asarray(got.target)[member]
        np.testing.assert_allclose(returns - returns.mean(), stepwise[member], atol=1e-5)
        np.testing.assert_array_equal(np.asarray(got.advantage)[member], returns)


def critic_columns(seed: int) -> StepColumns:
    """The columns of algorithms with a critic; masked floats are NaN."""
    batch = random_columns(seed)
    names = (*CHAINS, "reward", "penalty", "anchor", "value", "tokens", "token_value")
    for name in ("reward", "penalty", "value", "token_value"):
        batch[name][~batch["mask"]] = np.nan
    return collect_columns(**{name: batch[name] for name in names})


def whitened(values: np.ndarray, mask: np.ndarray) -> np.ndarray:
    chosen = values[mask]
    deviation = ((chosen - chosen.mean()) ** 2).sum() / (len(chosen) - 1)
    return np.where(mask, (values - chosen.mean()) / np.sqrt(deviation + 1e-8), 0.0)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_ppo_equals_the_oracle(seed: int) -> None:
    """Advantages of steps and of tokens, and what the critic learns; a penalty belongs to the
    reward of its step.
    """
    c = critic_columns(seed)
    mask = (np.arange(9) < c.tokens[:, None]) & c.mask[:, None]
    rewards = np.zeros(mask.shape)
    for n in np.flatnonzero(c.mask):
        episode = c.mask & (c.group == c.group[n]) & (c.trajectory == c.trajectory[n])
        rewards[n, c.tokens[n] - 1] = c.reward[episode].sum() - c.penalty[n]
    found = oracle.token_gae(rewards, c.token_value, mask, gamma=0.9, lam=0.8)
    got = make_advantages("ppo", "verl_agent", **COMMON, lam=0.8)(c)
    check_tokens(got, found, mask)


def check_tokens(got: Advantages, expected: np.ndarray, mask: np.ndarray) -> None:
    """Compares advantages of tokens with GAE of the oracle, [N, R, 2]."""
    np.testing.assert_allclose(got.tokens, whitened(expected[..., 0], mask), atol=5e-5)
    np.testing.assert_allclose(got.target, expected[..., 1], atol=2e-5)
    mean = np.asarray(got.tokens).sum(1) / np.maximum(mask.sum(1), 1)
    np.testing.assert_allclose(got.total, mean, atol=1e-6)


def test_explained_variance_by_hand() -> None:
    c = critic_columns(1)
    got = value_metrics(
        c, jnp.asarray(2.0 * np.nan_to_num(c.value) + 1.0)
    )  # leaves a quarter of the variance
    np.testing.assert_allclose(got["critic/explained_variance"], 0.75, rtol=1e-5)
    np.testing.assert_allclose(got["critic/value_mean"], c.value[c.mask].mean(), rtol=1e-5)
    perfect = value_metrics(c, jnp.asarray(np.nan_to_num(c.token_value)))
    np.testing.assert_allclose(perfect["critic/explained_variance"], 1.0)
    assert float(value_metrics(c, jnp.zeros(len(c.mask)))["critic/explained_variance"]) == 0.0


def test_the_true_value_has_no_advantage_whatever_lambda() -> None:
    rows = steps(6)
    rows["value"] = np.zeros_like(rows["reward"])
    truth = np.asarray(step_gae(**rows, gamma=0.9, lam=1.0).target)
    for lam in (0.0, 0.5, 1.0):
        again = step_gae(**rows | {"value": truth}, gamma=0.9, lam=lam)
        np.testing.assert_allclose(again.advantage, 0.0, atol=1e-5)
        np.testing.assert_allclose(again.target, truth, atol=1e-5)


def test_no_rows() -> None:
    none = jnp.zeros(0, jnp.int32)
    got = step_gae(jnp.zeros(0), jnp.zeros(0), none, none, none, none == 0, gamma=0.9, lam=0.9)
    assert got.advantage.shape == got.target.shape == (0,)


def test_whitening_uses_the_unbiased_variance_of_unmasked_values() -> None:
    values = jnp.array([1.0, 3.0, np.nan, 5.0, 7.0])
    mask = jnp.array([1, 1, 0, 1, 1], bool)
    deviation = (20 / 3) ** 0.5  # mean 4, squares 9 + 1 + 1 + 9 over 4 - 1
    np.testing.assert_allclose(
        whiten(values, mask), np.array([-3, -1, 0, 1, 3]) / deviation, rtol=1e-6
    )
    np.testing.assert_array_equal(
        whiten(jnp.array([[2.0, 4.0]]), jnp.array([[True, False]])), [[0.0, 0.0]]
    )
