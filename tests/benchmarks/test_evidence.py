"""The tables of the evidence pages follow from the raw files."""

import functools
import json
from dataclasses import replace

import numpy as np
import pytest

from benchmarks import evidence
from benchmarks.evidence import ROOT, Difference
from benchmarks.experiments import EXPERIMENTS, GIGPO, GRPO, TABLES
from gigpo_jax.tools.compare.statistics import MeanFit, make_interval


@functools.cache
def list_differences(index: int) -> list[Difference]:
    return evidence.list_differences(EXPERIMENTS[index])


@pytest.mark.parametrize("index", [3, 5])  # WebShop, 60 with two main comparisons; BabyAI
def test_pages_and_record_have_the_numbers_of_the_raw_files(index: int):
    experiment = EXPERIMENTS[index]
    differences = list_differences(index)
    names = (experiment.name,)
    record = [row for row in json.loads(evidence.RECORD.read_text()) if row["experiment"] in names]
    assert len(record) == len(differences) == 5
    for row, difference in zip(record, differences, strict=True):
        assert (row["arm"], row["base"]) == (difference.arm, difference.base)
        assert row["interval"] == pytest.approx(difference.interval)
        assert row["bootstrap"] == pytest.approx(difference.bootstrap)
    _, _, *lines = evidence.format_page(differences).splitlines()
    page = (ROOT / "docs/evidence.md").read_text()
    assert [line for line in lines if line not in page] == []
    table = evidence.format_experiment(experiment)
    assert any(table in path.read_text() for path in evidence.list_pages())


def test_the_readme_has_main_comparisons():
    mains = {(experiment.name, arm) for experiment in EXPERIMENTS for arm in experiment.mains}
    assert {*evidence.README_ROWS} <= mains
    _, _, row = evidence.format_readme(list_differences(4)).splitlines()
    readme = (ROOT / "README.md").read_text()
    assert row in readme
    assert len(evidence.TABLE.search(readme)[0].splitlines()) == 4 + len(evidence.README_ROWS)


def test_only_what_survives_its_correction_is_bold():
    webshop = {(row.arm, row.base): row for row in list_differences(3)}
    assert {names for names, row in webshop.items() if row.is_significant} == {
        ("`graph_values`", GRPO),
        ("combination", GRPO),
    }
    # Its p-value is small enough, but its rates were chosen on the reported panels.
    babyai = list_differences(5)
    (values,) = [row for row in babyai if (row.arm, row.base) == ("`graph_values`", GRPO)]
    assert values.corrected is not None
    assert values.corrected < 0.05
    assert not values.is_significant


def test_every_table_stands_on_a_page_and_every_mark_has_a_table():
    text = "".join(path.read_text() for path in evidence.list_pages())
    assert {name for _, name, _ in evidence.TABLE.findall(text)} == {*TABLES, "readme", "all"}
    assert evidence.write_tables("a\n<!-- table x -->\nold\n<!-- end -->\nb", {"x": "new"}) == (
        "a\n<!-- table x -->\nnew\n<!-- end -->\nb"
    )


def test_a_mean_over_experiments_weighs_each_equally():
    def make(mean: float, error: float, freedom: float) -> Difference:
        fit = MeanFit(mean, error, freedom)
        return Difference("x", GIGPO, GRPO, 5, (0.5, 0.5), fit, make_interval(fit), 0.5)

    average = evidence.average([make(0.06, 0.03, 4.0), make(0.02, 0.04, 8.0)])
    # Errors add in squares; the degrees of freedom are Satterthwaite's.
    freedom = 25.0**2 / (81 / 4 + 256 / 8)
    assert average.fit == pytest.approx((0.04, 0.05 / 2, freedom))
    assert not replace(average).is_significant
    assert np.isfinite(average.p_value)
