"""All differences of arms from the baseline with p-values, corrected for their number.

Outcomes are the final success and the area of the training runs, and the outcomes of files that
`gigpo eval` wrote into the workdirs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gigpo_jax.config.keys import KEYS
from gigpo_jax.config.removed_keys import with_defaults
from gigpo_jax.core.errors import InputError
from gigpo_jax.core.files import read_object
from gigpo_jax.tools.compare.runs import Arm, Run, must_equal
from gigpo_jax.tools.compare.statistics import (
    MeanEstimate,
    bootstrap_mean,
    correct_p_values,
    estimate_mean,
    estimate_p_value,
    flip_signs,
    measure_area,
)

FINAL = "final"
_Outcomes = Mapping[int, np.ndarray]  # seed -> [G] f64, NaN where there is none


@dataclass(frozen=True)
class Comparison:
    """A difference from the baseline.

    Attributes:
      arm: Label of the arm.
      outcome: "final", "area", or the name of a file of `gigpo eval`.
      success: Mean outcome of the arm over all of its seeds.
      difference: Difference from the baseline, over the seeds of both.
      p_value: P-value of a difference of 0.
      flip_p_value: Exact p-value of the signs of the seeds' differences.
      bootstrap: Difference with the interval of the bootstrap, as in earlier texts.
      corrected: `p_value` by Holm's method; None for the main comparison and for exploratory ones.
    """

    arm: str
    outcome: str
    success: MeanEstimate
    difference: MeanEstimate
    p_value: float
    flip_p_value: float
    bootstrap: MeanEstimate
    corrected: float | None = None


@dataclass(frozen=True)
class _Evaluation:
    conditions: dict[str, Any]
    won: np.ndarray


def list_comparisons(
    arms: Sequence[Arm], files: Sequence[str] = (), main: str = ""
) -> list[Comparison]:
    """Compares all arms that share a seed with the first one, in all outcomes.

    Args:
      arms: Arms; the first is the baseline.
      files: Names of files of `gigpo eval --out=WORKDIR/FILE`, in every workdir.
      main: Label of the arm whose final success is the main comparison, which is not corrected;
        "": there is none. It needs a seed in common with the baseline.

    Raises:
      InputError: A file is missing, or evaluations are not comparable; or there is no such arm.
    """
    if main and main not in [arm.label for arm in arms[1:]]:
        labels = ", ".join(arm.label for arm in arms[1:])
        raise InputError("no such arm", key="--main", value=main, fix=f"choose from: {labels}")
    tables = {FINAL: _read_final(arms), "area": _read_areas(arms)}
    tables |= {file: _read_files(arms, file) for file in files}
    comparisons = []
    for outcome, (baseline, *others) in tables.items():
        for arm, outcomes in zip(arms[1:], others, strict=True):
            shared_seeds = sorted(outcomes.keys() & baseline.keys())
            if shared_seeds:
                rows = [outcomes[seed] - baseline[seed] for seed in shared_seeds]
                comparisons.append(_compare(arm.label, outcome, outcomes, np.stack(rows)))
    if main and (main, FINAL) not in [(row.arm, row.outcome) for row in comparisons]:
        raise InputError(
            "the arm has no seed in common with the baseline",
            key="--main",
            value=main,
            fix="choose another arm, or run its seeds",
        )
    return _add_corrections(comparisons, main)


def list_explorations(arms: Sequence[Arm], files: Sequence[str] = ()) -> list[Comparison]:
    """Compares the other arms with GiGPO, without a correction.

    The list is empty if no arm is GiGPO, or if the first one is: then `list_comparisons` has them.

    Args:
      arms: Arms; the first is the baseline.
      files: Names of files as for `list_comparisons`.
    """
    is_gigpo = [arm.runs[0].config["rl.algorithm"] == "gigpo" for arm in arms]
    if is_gigpo[0] or not any(is_gigpo):
        return []
    gigpo = arms[is_gigpo.index(True)]
    others = [arm for arm in arms[1:] if arm is not gigpo]
    return [replace(row, corrected=None) for row in list_comparisons([gigpo, *others], files)]


def _compare(label: str, outcome: str, outcomes: _Outcomes, differences: np.ndarray) -> Comparison:
    return Comparison(
        arm=label,
        outcome=outcome,
        success=estimate_mean(np.stack(list(outcomes.values()))),
        difference=estimate_mean(differences),
        p_value=estimate_p_value(differences),
        flip_p_value=flip_signs(differences),
        bootstrap=bootstrap_mean(differences),
    )


def _add_corrections(comparisons: Sequence[Comparison], main: str) -> list[Comparison]:
    corrected = list(comparisons)
    indices = [
        index
        for index, comparison in enumerate(comparisons)
        if (comparison.arm, comparison.outcome) != (main, FINAL)
    ]
    p_values = np.array([comparisons[index].p_value for index in indices])
    for index, p_value in zip(indices, correct_p_values(p_values), strict=True):
        corrected[index] = replace(comparisons[index], corrected=float(p_value))
    return corrected


def _read_final(arms: Sequence[Arm]) -> list[_Outcomes]:
    return [{run.seed: run.won[-1] for run in arm.runs} for arm in arms]


def _read_areas(arms: Sequence[Arm]) -> list[_Outcomes]:
    return [
        {run.seed: measure_area(run.won[None], run.iterations)[0] for run in arm.runs}
        for arm in arms
    ]


def _read_files(arms: Sequence[Arm], file: str) -> list[_Outcomes]:
    """Reads the outcomes in every workdir, by arm.

    Raises:
      InputError: A file is missing or damaged, is not of the end of its run, or differs in its
        conditions from the first run's.
    """
    first: _Evaluation | None = None
    outcomes: list[_Outcomes] = []
    for arm in arms:
        by_seed = {}
        for run in arm.runs:
            evaluation = _read_file(run, file)
            first = first or evaluation
            for key in sorted(first.conditions | evaluation.conditions):
                values = [first.conditions.get(key), evaluation.conditions.get(key)]
                if values[0] != values[1]:
                    reason = f"cannot be compared with the file of {arms[0].runs[0].folder}: {key}"
                    raise InputError(f"{reason} differs", key=run.folder / file)
            by_seed[run.seed] = evaluation.won
        outcomes.append(by_seed)
    return outcomes


def _read_file(run: Run, file: str) -> _Evaluation:
    path = run.folder / file
    content = read_object(path, fix="gigpo eval with --out makes it")
    last_iteration = int(run.iterations[-1])
    # Files of version 0.1 have summaries alone.
    if "outcomes" not in content or content.get("iteration") != last_iteration:
        raise InputError(
            f"is no evaluation of iteration {last_iteration} with the outcome of every task",
            key=path,
            fix="make it again with gigpo eval",
        )
    # Files of older versions have keys under names of that time.
    settings = with_defaults(content["settings"], KEYS)
    conditions = {key: value for key, value in settings.items() if must_equal(key)}
    conditions |= {key: content[key] for key in ("panel", "sha256", "agent", "tasks")}
    won = np.array(content["outcomes"]["sampled"]["won"], dtype=float)
    return _Evaluation(conditions, won)


def format_comparisons(
    comparisons: Sequence[Comparison], baseline: str, *, exploratory: bool = False
) -> str:
    """A Markdown table of success in % and differences in percentage points; "" if it is empty."""
    if not comparisons:
        return ""
    corrected_count = sum(comparison.corrected is not None for comparison in comparisons)
    last_column = "exploratory" if exploratory else f"p, Holm over {corrected_count}"
    lines = [
        f"| arm | outcome | success | minus {baseline} (95%) | p | p, sign flip | {last_column} |",
        "|---|---|---|---|---|---|---|",
    ]
    for comparison in comparisons:
        mean, low, high = (format(100 * value, "+.1f") for value in comparison.difference)
        corrected = comparison.corrected
        uncorrected = "not corrected" if exploratory else "main comparison"
        cells = [
            comparison.arm,
            comparison.outcome,
            f"{100 * comparison.success.mean:.1f}",
            f"{mean} ({low} to {high})",
            f"{comparison.p_value:.4f}",
            f"{comparison.flip_p_value:.4f}",
            uncorrected if corrected is None else f"{corrected:.4f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)
