"""The folder of a measurement, and several measurements graded as one."""

import json
from pathlib import Path

import numpy as np
import pytest

from gigpo_jax.config import default_config, resolve
from gigpo_jax.core.errors import InputError
from gigpo_jax.tools.credit.estimates import Estimate
from gigpo_jax.tools.credit.grades import Measured, grade
from gigpo_jax.tools.credit.measurement import Measurement, claim_folder, grade_estimates
from gigpo_jax.tools.credit.pool import pool_measurements
from gigpo_jax.tools.credit.report import write_report


def test_a_folder_that_is_older_than_a_key_counts_as_played_with_its_default(
    tmp_path: Path,
) -> None:
    config = resolve(default_config())
    claim_folder(tmp_path, config, 8)
    settings = json.loads((tmp_path / "settings.json").read_text())
    del settings["env.overlong_buffer"]
    settings["env.overlong_penalty"] = 1.0  # the key is gone
    (tmp_path / "settings.json").write_text(json.dumps(settings))
    claim_folder(tmp_path, config, 8)
    config.env.overlong_buffer = 5
    with pytest.raises(InputError, match=r"env.overlong_buffer=5 \(there: 0\)"):
        claim_folder(tmp_path, config, 8)


def saved(folder: Path, seed: int, steps: int) -> tuple[np.ndarray, Measured]:
    """A measurement with GRPO, equal for both presets in the first one alone, and an estimate that
    only it has.
    """
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=steps)
    error = np.full(steps, 0.5)
    own = Measured(truth + error * rng.normal(size=steps), error, rng.integers(6, size=steps))
    plain = (truth + rng.normal(size=steps)).astype(np.float32).round(4)
    presets = (
        [(("paper", "verl_agent"), plain)]
        if seed == 0
        else [(("paper",), plain), (("verl_agent",), 2 * plain)]
    )
    found = [
        Estimate(
            ("grpo",),
            ("grpo",),
            "any",
            tuple(("grpo", p, anchor) for p in these for anchor in "ab"),
            values,
        )
        for these, values in presets
    ]
    found.append(Estimate(("gigpo",), ("gigpo:paper",), "b", (("gigpo", "paper", "b"),), 3 * plain))
    if seed == 0:
        found.append(Estimate(("rloo",), ("rloo",), "a", (("rloo", "paper", "a"),), -plain))
    measurement = Measurement(
        (), np.arange(steps), own, (own.advantage,) * 2, np.full(steps, np.nan)
    )
    labels = {
        "a": {"step": np.array(["1", "2-3"])[np.arange(steps) % 2]},
        "b": {"step": np.full(steps, "1")},
    }
    folder.mkdir()
    verdicts = [
        {"group": int(g), "advantage": a, "error": e, "regret": None}
        for g, a, e in zip(own.group, own.advantage.tolist(), own.error.tolist(), strict=True)
    ]
    rows = grade_estimates(found, measurement, labels, 0)
    if seed == 0:
        rows += grade_estimates(
            found, measurement, labels, 0, group_size=4
        )  # of no use to a pool: the other one has none
    write_report(folder, rows, own, {"steps": verdicts})
    return plain, own


def test_measurements_are_graded_as_one(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in "ab"]
    (x, one), (y, two) = (
        saved(folder, seed, 60 + 20 * seed) for seed, folder in enumerate(folders)
    )
    rows, own = pool_measurements(folders, 0)
    together = Measured(
        np.concatenate([one.advantage, two.advantage]),
        np.concatenate([one.error, two.error]),
        np.concatenate([one.group, two.group + 6]),
    )
    assert len(np.unique(own.group)) == 12
    by_label = {row.estimate.labels: row for row in rows}
    assert {*by_label} == {
        ("grpo:paper",),
        ("grpo:verl_agent",),
        ("gigpo:paper",),
    }  # rloo is in one of them
    assert by_label["gigpo:paper",].slices["step"]["1"]["steps"] == 140  # its anchors are others
    expected = grade(np.concatenate([x, y]), together, 0)["corrected"]
    assert by_label["grpo:paper",].grades["corrected"] == pytest.approx(expected, abs=1e-6)
    expected = grade(np.concatenate([x, 2 * y]), together, 0)["corrected"]
    assert by_label["grpo:verl_agent",].grades["corrected"] == pytest.approx(expected, abs=1e-6)
    parts = by_label["grpo:paper",].slices
    assert parts["step"]["1"]["steps"] == 70
    assert parts["measurement"][str(folders[0])]["corrected"][0] == pytest.approx(
        grade(x, one, 0)["corrected"][0]
    )
    with pytest.raises(InputError, match=r"holds no grades\.json"):
        pool_measurements([tmp_path], 0)


def test_an_estimate_is_compared_with_the_grpo_of_its_own_preset() -> None:
    rng = np.random.default_rng(3)
    truth = rng.normal(size=60)
    measured = Measured(truth, np.full(60, 0.1), np.arange(60) % 6)
    values = {
        source: (truth + spread * rng.normal(size=60)).astype(np.float32)
        for source, spread in {
            ("grpo", "paper"): 3.0,
            ("grpo", "verl_agent"): 1.0,
            ("gigpo", "paper"): 0.6,
            ("gigpo", "verl_agent"): 0.5,
            ("salt over gigpo", "verl_agent"): 0.4,
        }.items()
    }
    estimates = [
        Estimate((name,), (f"{name}:{preset}",), "any", ((name, preset, "a"),), array)
        for (name, preset), array in values.items()
    ]
    both = (("rloo", "paper", "a"), ("rloo", "verl_agent", "a"))
    estimates.append(Estimate(("rloo",), ("rloo",), "any", both, truth.astype(np.float32)))
    # A variant of `paper` that is GiGPO as in `verl_agent`.
    equal = (("gigpo ddof=0", "paper", "a"), ("hgpo", "verl_agent", "a"))
    array = (truth + 0.3 * rng.normal(size=60)).astype(np.float32)
    estimates.append(Estimate(("gigpo ddof=0", "hgpo"), ("hgpo",), "a", equal, array))
    measurement = Measurement((), np.arange(60), measured, (truth, truth), np.full(60, np.nan))
    rows = grade_estimates(estimates, measurement, {"a": {}}, 0)
    for row in rows:
        name, preset, _ = row.estimate.sources["hgpo" in row.estimate.names]
        baseline = None if name == "grpo" else values["grpo", preset]
        expected = grade(row.values, measured, 0, baseline).get("difference")
        assert row.grades.get("difference") == expected, row.label
