"""SPA-RL by hand, and against an oracle on random batches."""

import numpy as np
import pytest

from gigpo_jax.rl.types import collect_columns
from tests.methods import oracle
from tests.methods.totals import SEEDS, SWITCHES, X, check, compiled, compiled_total, total
from tests.rl.test_advantages import Columns, columns, padded, random_columns


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
