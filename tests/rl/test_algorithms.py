import dataclasses

import jax
import numpy as np
import pytest

from gigpo_jax.core.errors import InputError
from gigpo_jax.rl.algorithms import ALGORITHMS, PRESETS, find_algorithm, make_advantages
from gigpo_jax.rl.types import StepColumns, collect_columns
from tests.rl import oracle
from tests.rl.test_advantages import columns, padded, plan_columns, random_batch

SETTINGS = {"gamma": 0.9, "step_weight": 1.0, "normalize": "mean_std"}
# Settings with which an algorithm reads all its columns; its defaults leave some out.
READING = {
    "graph_values": {"truncation": "ignore"},
    "opd": {"outcome": 1.0},
}


def small() -> StepColumns:
    """One task: a trajectory of two steps that wins 3, one of one step that gets 0, one of one step
    that gets 6.
    """
    return StepColumns(
        **columns([0, 3, 0, 6], [0] * 4, [0, 0, 1, 2], [0, 1, 0, 0], [0] * 4, [1, 2, 3, 4])
    )


def test_rloo_by_hand():
    # Returns 3, 0, 6; the others' means 3, 4.5, 1.5.
    got = make_advantages("rloo", "paper", **SETTINGS)(small())
    np.testing.assert_allclose(got.total, [0, 0, -4.5, 4.5], atol=1e-6)


def test_dr_grpo_by_hand():
    got = make_advantages("dr_grpo", "paper", **SETTINGS)(small())
    np.testing.assert_allclose(got.total, [0, 0, -3, 3], atol=1e-6)


def test_reinforce_pp_by_hand():
    # Discounted returns 2.7, 3, 0, 6; mean 2.925; squares sum to 0.050625 + 0.005625 + 8.555625 +
    # 9.455625 = 18.0675.
    got = make_advantages("reinforce_pp", "paper", **SETTINGS)(small())
    want = (np.asarray([2.7, 3, 0, 6]) - 2.925) / np.sqrt(18.0675 / 3)
    np.testing.assert_allclose(got.total, want, rtol=1e-5)


def test_grpo_is_gigpo_without_the_step_part():
    batch = random_batch(3)
    for preset in PRESETS:
        settings = {**PRESETS[preset], **SETTINGS}
        grpo = make_advantages("grpo", preset, **SETTINGS)(collect_columns(**batch))
        gigpo = make_advantages("gigpo", preset, **SETTINGS)(collect_columns(**batch))
        np.testing.assert_array_equal(grpo.total, gigpo.episode)
        np.testing.assert_allclose(
            gigpo.total, oracle.advantages(**batch, **settings)[:, 0], rtol=1e-4, atol=2e-5
        )


# Others have tests by hand and oracles in tests/methods.
QUICK = ("gigpo", "grpo", "ppo", "graph_values")
NAMES = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in ALGORITHMS]


@pytest.mark.parametrize("name", NAMES)
def test_every_algorithm_ignores_masked_rows_and_row_order_and_reads_what_it_needs(name):
    needs = find_algorithm(name).columns
    required = {
        field.name for field in dataclasses.fields(StepColumns) if field.default is not None
    }
    batch = {
        key: x for key, x in padded(plan_columns(4)).items() if key in required or key in needs
    }
    settings = SETTINGS | READING.get(name, {})
    function = jax.jit(make_advantages(name, "verl_agent", **settings))

    def total(**changed: np.ndarray) -> np.ndarray:
        return np.asarray(function(collect_columns(**batch | changed)).total)

    whole = total()
    assert np.all(whole[~batch["mask"]] == 0.0)
    assert np.any(whole != 0.0)
    order = np.random.default_rng(0).permutation(len(whole))
    floats = [key for key, x in batch.items() if x.dtype == np.float32]
    hidden = batch | {key: batch[key].copy() for key in floats}
    for key in floats:
        hidden[key][~batch["mask"]] = np.nan
    shuffled = total(**{key: x[order] for key, x in hidden.items()})
    np.testing.assert_allclose(shuffled, whole[order], rtol=1e-4, atol=1e-5)
    for column in needs:
        assert not np.array_equal(
            total(**{column: np.random.default_rng(1).permutation(batch[column])}), whole
        ), column
    alone = batch["mask"] & (np.arange(len(whole)) == np.flatnonzero(batch["mask"])[0])
    assert np.isfinite(total(mask=alone)).all()
    assert not total(mask=np.zeros_like(alone)).any()
    assert (
        make_advantages(name, "paper", **settings)(
            collect_columns(**{k: x[:0] for k, x in batch.items()})
        ).total.size
        == 0
    )


def test_a_wrapper_takes_over_what_its_base_declares():
    whole = find_algorithm("empg", {"base": "hgpo", "alpha": 2.0, "k": 0.5})
    assert whole.columns == ("entropy",)
    assert whole.check == find_algorithm("hgpo").check
    assert {"alpha", "history", "k", "base"} <= {*whole.settings}
    assert find_algorithm("salt", {"base": "dapo"}).defaults == find_algorithm("dapo").defaults
    with pytest.raises(InputError, match=r"base='ppo': has no advantage of steps"):
        find_algorithm("salt", {"base": "ppo"})
    with pytest.raises(InputError, match=r"base='empg': a wrapper itself"):
        find_algorithm("salt", {"base": "empg"})
    with pytest.raises(InputError, match=r"settings\.alpha: no such setting of the algorithm empg"):
        find_algorithm("empg", {"alpha": 2.0})
    with pytest.raises(InputError, match=r"settings\.alpha=-1\.0: must be 0 or greater"):
        make_advantages("hgpo", "paper", **SETTINGS, alpha=-1.0)


def test_the_text_critic_whitens_gae_of_rewards_less_penalties():
    batch = random_batch(6)
    value = np.random.default_rng(2).normal(size=len(batch["mask"])).astype(np.float32)
    found = make_advantages("text_critic", "paper", **SETTINGS)(
        collect_columns(**batch, value=value)
    )
    rows = {name: batch[name] for name in ("trajectory", "step", "group", "mask")}
    gae = oracle.step_gae(batch["reward"] - batch["penalty"], value, **rows, gamma=1.0, lam=0.7)[
        :, 0
    ]
    real = gae[batch["mask"]]
    expected = np.where(batch["mask"], (gae - real.mean()) / real.std(ddof=1), 0.0)
    np.testing.assert_allclose(found.total, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(found.total, found.step)
    assert not np.any(found.episode)


def test_ratios_of_whole_responses_have_no_dual_clip():
    """As in the authors' losses: it would take the gradient of responses that became likelier."""
    names = {name for name, entry in ALGORITHMS.items() if "ratio" in entry.fixed}
    assert names == {"gspo", "gmpo", "hoelder", "a2tgpo", "gagpo", "step_ppo", "turn_ppo"}
    for name in names:
        assert ALGORITHMS[name].defaults.get("dual_clip") == 0.0, name


def test_unknown_names_list_the_choices():
    with pytest.raises(InputError, match=r"'gigp0'.*gigpo, grpo"):
        find_algorithm("gigp0")
    with pytest.raises(InputError, match=r"'papers'.*paper, verl_agent"):
        make_advantages("gigpo", "papers", **SETTINGS)
