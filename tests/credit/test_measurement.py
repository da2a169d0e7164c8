"""The folder of a measurement, and several measurements graded as one."""

import json
from pathlib import Path

import numpy as np
import pytest

from gigpo_jax.config import default_config, resolve
from gigpo_jax.credit.estimates import Estimate
from gigpo_jax.credit.grades import Measured, grade
from gigpo_jax.credit.measurement import Measurement, claim, graded
from gigpo_jax.credit.pool import pool
from gigpo_jax.credit.report import report
from gigpo_jax.errors import InputError


def test_a_folder_that_is_older_than_a_key_counts_as_played_with_its_default(tmp_path: Path) -> None:
    config = resolve(default_config())
    claim(tmp_path, config, 8)
    settings = json.loads((tmp_path / "settings.json").read_text())
    del settings["env.overlong_penalty"]
    (tmp_path / "settings.json").write_text(json.dumps(settings))
    claim(tmp_path, config, 8)
    config.env.overlong_penalty = 0.5
    with pytest.raises(InputError, match=r"env.overlong_penalty=0.5 \(there: 1.0\)"):
        claim(tmp_path, config, 8)


def saved(folder: Path, seed: int, steps: int) -> tuple[np.ndarray, Measured]:
    """A measurement with GRPO, equal for both presets in the first one alone, and an estimate that only it has."""
    rng = np.random.default_rng(seed)
    truth, error = rng.normal(size=steps), np.full(steps, 0.5)
    own = Measured(truth + error * rng.normal(size=steps), error, rng.integers(6, size=steps))
    plain = (truth + rng.normal(size=steps)).astype(np.float32).round(4)
    presets = [(("paper", "verl_agent"), plain)] if seed == 0 else [(("paper",), plain), (("verl_agent",), 2 * plain)]
    found = [
        Estimate(("grpo",), ("grpo",), "any", tuple(("grpo", p, anchor) for p in these for anchor in "ab"), values)
        for these, values in presets
    ]
    found.append(Estimate(("gigpo",), ("gigpo:paper",), "b", (("gigpo", "paper", "b"),), 3 * plain))
    if seed == 0:
        found.append(Estimate(("rloo",), ("rloo",), "a", (("rloo", "paper", "a"),), -plain))
    measurement = Measurement((), np.arange(steps), own, (own.advantage,) * 2, np.full(steps, np.nan))
    labels = {"a": {"step": np.array(["1", "2-3"])[np.arange(steps) % 2]}, "b": {"step": np.full(steps, "1")}}
    folder.mkdir()
    verdicts = [
        {"group": int(g), "advantage": a, "error": e, "regret": None}
        for g, a, e in zip(own.group, own.advantage.tolist(), own.error.tolist(), strict=True)
    ]
    rows = graded(found, measurement, labels, 0)
    if seed == 0:
        rows += graded(found, measurement, labels, 0, group_size=4)  # of no use to a pool: the other one has none
    report(folder, rows, own, {"steps": verdicts})
    return plain, own


def test_measurements_are_graded_as_one(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in "ab"]
    (x, one), (y, two) = (saved(folder, seed, 60 + 20 * seed) for seed, folder in enumerate(folders))
    rows, own = pool(folders, 0)
    together = Measured(
        np.concatenate([one.advantage, two.advantage]),
        np.concatenate([one.error, two.error]),
        np.concatenate([one.group, two.group + 6]),
    )
    assert len(np.unique(own.group)) == 12
    by_label = {row.estimate.labels: row for row in rows}
    assert {*by_label} == {("grpo:paper",), ("grpo:verl_agent",), ("gigpo:paper",)}  # rloo is in one of them
    assert by_label["gigpo:paper",].slices["step"]["1"]["steps"] == 140  # its anchors are others
    expected = grade(np.concatenate([x, y]), together, 0)["corrected"]
    assert by_label["grpo:paper",].grades["corrected"] == pytest.approx(expected, abs=1e-6)
    expected = grade(np.concatenate([x, 2 * y]), together, 0)["corrected"]
    assert by_label["grpo:verl_agent",].grades["corrected"] == pytest.approx(expected, abs=1e-6)
    parts = by_label["grpo:paper",].slices
    assert parts["step"]["1"]["steps"] == 70
    assert parts["measurement"][str(folders[0])]["corrected"][0] == pytest.approx(grade(x, one, 0)["corrected"][0])
    with pytest.raises(InputError, match=r"holds no grades\.json"):
        pool([tmp_path], 0)
