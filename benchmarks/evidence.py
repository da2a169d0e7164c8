"""All paired differences of the experiments, from the archives in benchmarks/results.

    python -m benchmarks.evidence

Writes benchmarks/results/evidence.json and the tables of README.md, docs/evidence.md and
docs/evidence/*.md, each between the lines `<!-- table NAME -->` and `<!-- end -->`. Differences
from the first arm are corrected by Holm within their experiment, over all arms and outcomes of its
protocol but the main comparisons; differences from GiGPO and means over experiments are
exploratory.
"""

import functools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.experiments import (
    COMBINATION,
    EXPERIMENTS,
    GIGPO,
    GRAPH,
    GRPO,
    REPEAT,
    TABLES,
    Experiment,
)
from benchmarks.results import RESULTS, find_campaign
from gigpo_jax.tools.compare.comparisons import FINAL, Comparison, list_comparisons
from gigpo_jax.tools.compare.runs import Arm, check_comparable, read_run
from gigpo_jax.tools.compare.statistics import (
    MeanEstimate,
    MeanFit,
    correct_p_values,
    find_p_value,
    fit_mean,
    make_interval,
)

ROOT = Path(__file__).parents[1]
RECORD = RESULTS / "evidence.json"
TABLE = re.compile(r"(<!-- table (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
OWN_ARMS = (REPEAT, GRAPH, COMBINATION)
# README.md: the main comparison of each environment's last protocol.
README_ROWS = (
    ("ALFWorld, 100", COMBINATION),
    ("WebShop, 100", COMBINATION),
    ("Sokoban, 60", GRAPH),
    ("FrozenLake with slips, 20", GRAPH),
)
LEVEL = 0.05


@dataclass(frozen=True)
class Difference:
    """A difference in final success.

    Attributes:
      experiment: Name of the experiment; "mean" for the mean over experiments.
      arm: Arm.
      base: Arm that it is compared with.
      seeds: Number of seeds; of experiments for a mean.
      success: Success of the arm and of its base; None for a mean.
      fit: Fit of the difference.
      interval: 95% interval.
      p_value: P-value.
      flip_p_value: Exact p-value of signs of seeds; None for a mean.
      bootstrap: Interval of earlier texts; None for a mean.
      corrected: P-value by Holm; None for main comparisons and exploratory ones.
      is_significant: Whether the p-value that counts is below 5%; never of exploratory ones.
    """

    experiment: str
    arm: str
    base: str
    seeds: int
    success: tuple[float, float] | None
    fit: MeanFit
    interval: MeanEstimate
    p_value: float
    flip_p_value: float | None = None
    bootstrap: MeanEstimate | None = None
    corrected: float | None = None
    is_significant: bool = False


@functools.cache
def read_arms(experiment: Experiment) -> list[Arm]:
    """Reads all runs of an experiment.

    Raises:
      InputError: Runs are not finished, or not comparable.
    """
    arms = []
    for label, path in experiment.arms.items():
        campaign, _, name = path.partition("/")
        prefix = find_campaign(campaign) / name
        folders = sorted(
            folder
            for folder in prefix.parent.iterdir()
            if folder.name.rpartition("_seed")[0] == prefix.name
        )
        runs = sorted((read_run(folder) for folder in folders), key=lambda run: run.seed)
        seeds = experiment.seeds
        arms.append(Arm(label, tuple(run for run in runs if not seeds or run.seed in seeds)))
    check_comparable([run for arm in arms for run in arm.runs])
    return arms


def compare_arms(experiment: Experiment, arms: Sequence[Arm]) -> list[Comparison]:
    """All differences from the first arm, corrected but for the main comparisons.

    Outcomes that the protocol calls exploratory have no corrected p-value and are no main ones.
    """
    rows = list_comparisons(arms, experiment.files)
    if not experiment.family:
        family = [row for row in rows if row.outcome != FINAL or row.arm not in experiment.mains]
        corrected = _correct(family)
    else:
        partners = [other for other in EXPERIMENTS if other.family == experiment.family]
        family = [
            row
            for other in partners
            for row in (rows if other is experiment else list_comparisons(read_arms(other)))
            if row.outcome == FINAL and row.arm not in other.mains
        ]
        corrected = _correct(family)
    return [replace(row, corrected=corrected.get(id(row))) for row in rows]


def _correct(family: Sequence[Comparison]) -> dict[int, float]:
    """Corrected p-values of comparisons by their identity."""
    p_values = correct_p_values(np.array([row.p_value for row in family]))
    return {id(row): float(value) for row, value in zip(family, p_values, strict=True)}


def is_significant(experiment: Experiment, row: Comparison) -> bool:
    """Whether the p-value that counts is below 5%; exploratory differences have none."""
    is_main = row.outcome == FINAL and row.arm in experiment.mains
    if row.corrected is None and not is_main:
        return False
    p_value = row.p_value if row.corrected is None else row.corrected
    return p_value < LEVEL and not experiment.caveat


def list_differences(experiment: Experiment) -> list[Difference]:
    """All differences of an experiment from GRPO and from GiGPO."""
    arms = read_arms(experiment)
    differences = []
    for row in compare_arms(experiment, arms):
        if row.outcome == FINAL:
            difference = _make_difference(experiment, arms, GRPO, row)
            significance = is_significant(experiment, row)
            differences.append(
                replace(difference, corrected=row.corrected, is_significant=significance)
            )
    others = [arm for arm in arms if arm.label not in (GRPO, GIGPO)]
    gigpo = next(arm for arm in arms if arm.label == GIGPO)
    for row in list_comparisons([gigpo, *others]):
        if row.outcome == FINAL:
            differences.append(_make_difference(experiment, arms, GIGPO, row))
    return differences


def _make_difference(
    experiment: Experiment, arms: Sequence[Arm], base: str, row: Comparison
) -> Difference:
    by_label = {arm.label: arm for arm in arms}
    seeds = sorted(set(by_label[row.arm].seeds) & set(by_label[base].seeds))
    won = by_label[row.arm].stack_outcomes(seeds)[:, -1]
    base_won = by_label[base].stack_outcomes(seeds)[:, -1]
    return Difference(
        experiment=experiment.name,
        arm=row.arm,
        base=base,
        seeds=len(seeds),
        success=(float(np.nanmean(won)), float(np.nanmean(base_won))),
        fit=fit_mean(won - base_won),
        interval=row.difference,
        p_value=row.p_value,
        flip_p_value=row.flip_p_value,
        bootstrap=row.bootstrap,
    )


def average(differences: Sequence[Difference]) -> Difference:
    """The mean of differences over experiments, with equal weights.

    It is about these experiments alone, so their spread is no part of its error.
    """
    errors = np.array([difference.fit.error for difference in differences])
    freedoms = np.array([difference.fit.freedom for difference in differences])
    mean = float(np.mean([difference.fit.mean for difference in differences]))
    variance = np.sum(errors**2)
    freedom = variance**2 / np.sum(errors**4 / freedoms)  # Satterthwaite
    fit = MeanFit(mean, float(np.sqrt(variance)) / len(errors), float(freedom))
    return Difference(
        experiment="mean",
        arm=differences[0].arm,
        base=differences[0].base,
        seeds=len(differences),
        success=None,
        fit=fit,
        interval=make_interval(fit),
        p_value=find_p_value(fit),
    )


def list_all() -> list[Difference]:
    """All differences, and after them the means over experiments."""
    differences = [row for experiment in EXPERIMENTS for row in list_differences(experiment)]
    pairs = [(arm, base) for base in (GRPO, GIGPO) for arm in (GIGPO, *OWN_ARMS) if arm != base]
    for pair in pairs:
        differences.append(average([row for row in differences if (row.arm, row.base) == pair]))
    return differences


def show_difference(difference: Difference) -> str:
    """A difference in points with its interval, bold if it is significant."""
    return show_interval(difference.interval, "+", bold=difference.is_significant)


def show_interval(interval: MeanEstimate, sign: str = "", *, bold: bool = False) -> str:
    """A mean in points with its interval."""
    mean, low, high = (100 * value for value in interval)
    text = f"{mean:{sign}.1f} [{low:.1f}, {high:.1f}]"
    return f"**{text}**" if bold else text


def find(differences: Iterable[Difference], experiment: str, arm: str, base: str) -> Difference:
    """The difference of an experiment, by the names of both arms."""
    names = (experiment, arm, base)
    return next(row for row in differences if (row.experiment, row.arm, row.base) == names)


def format_readme(differences: Sequence[Difference]) -> str:
    """The table of README.md: main comparisons, each with the difference from GiGPO beside it."""
    lines = [
        "| experiment, iterations (seeds) | GRPO | GiGPO | arm | minus GRPO | minus GiGPO |",
        "|---|---|---|---|---|---|",
    ]
    for row in differences:
        if row.base != GIGPO or (row.experiment, row.arm) not in README_ROWS:
            continue
        base = find(differences, row.experiment, row.arm, GRPO)
        gigpo = find(differences, row.experiment, GIGPO, GRPO)
        assert gigpo.success is not None  # of an experiment, not of a mean
        cells = [
            f"{row.experiment} ({row.seeds})",
            f"{100 * gigpo.success[1]:.1f}%",
            f"{100 * gigpo.success[0]:.1f}%",
            row.arm,
            show_difference(base),
            show_difference(row),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def format_page(differences: Sequence[Difference]) -> str:
    """The table of docs/evidence.md: all differences with their p-values."""
    lines = [
        "| experiment, iterations (seeds) | arm | success | difference | p, flip, Holm |",
        "|---|---|---|---|---|",
    ]
    for row in differences:
        holm = "exploratory"
        if row.base == GRPO and row.success:
            holm = "main" if row.corrected is None else f"{row.corrected:.3f}"
        p_values = [row.p_value, row.flip_p_value]
        shown = [f"{value:.3f}" for value in p_values if value is not None]
        cells = [
            f"{row.experiment} ({row.seeds})" if row.success else f"mean of {row.seeds}",
            f"{row.arm} minus {row.base}",
            f"{100 * row.success[0]:.1f}%" if row.success else "",
            show_difference(row),
            ", ".join([*shown, holm]),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def format_experiment(experiment: Experiment) -> str:
    """The table of one experiment: a row for each arm, a column for each outcome."""
    arms = read_arms(experiment)
    rows = {(row.arm, row.outcome): row for row in compare_arms(experiment, arms)}
    base = arms[0].label
    outcomes = (FINAL, "area", *experiment.files)
    titles = [f"{outcome.removesuffix('.json')}, minus {base}" for outcome in outcomes]
    header = ["arm", "final", titles[0], "p, flip, Holm", *titles[1:], "lowest, highest run"]
    lines = [f"| {' | '.join(header)} |", "|" + "---|" * len(header)]
    for arm in arms:
        final = arm.stack_outcomes()[:, -1]
        means = [100 * np.nanmean(won) for won in final]
        differences = [rows.get((arm.label, outcome)) for outcome in outcomes]
        shown = [
            show_interval(row.difference, "+", bold=is_significant(experiment, row)) if row else ""
            for row in differences
        ]
        cells = [
            arm.label,
            show_interval(make_interval(fit_mean(final))),
            shown[0],
            _show_p_values(differences[0]),
            *shown[1:],
            f"{min(means):.1f}, {max(means):.1f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _show_p_values(row: Comparison | None) -> str:
    if row is None:
        return ""
    holm = "main" if row.corrected is None else f"{row.corrected:.3f}"
    return f"{row.p_value:.3f}, {row.flip_p_value:.3f}, {holm}"


def write_tables(text: str, tables: Mapping[str, str]) -> str:
    """A page with the tables between its marks replaced."""
    return TABLE.sub(lambda match: f"{match[1]}{tables[match[2]]}\n{match[3]}", text)


def list_pages() -> list[Path]:
    """The pages that have tables."""
    folder = ROOT / "docs/evidence"
    return [ROOT / "README.md", ROOT / "docs/evidence.md", *sorted(folder.glob("*.md"))]


def make_tables(differences: Sequence[Difference]) -> dict[str, str]:
    """All tables by name."""
    tables = {name: format_experiment(experiment) for name, experiment in TABLES.items()}
    return tables | {"readme": format_readme(differences), "all": format_page(differences)}


def main() -> None:
    """Writes the record and the tables."""
    differences = list_all()
    record = [asdict(difference) for difference in differences]
    RECORD.write_text(json.dumps(record, indent=1) + "\n")
    tables = make_tables(differences)
    for path in list_pages():
        path.write_text(write_tables(path.read_text(), tables))


if __name__ == "__main__":
    main()
