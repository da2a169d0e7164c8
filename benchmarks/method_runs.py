"""The table of benchmarks/protocols/methods.md, from benchmarks/results/methods.

    python -m benchmarks.method_runs

`gigpo compare` refuses arms whose episodes or numbers of iterations differ, as these do; means,
intervals and p-values are its own.
"""

from pathlib import Path

import numpy as np

from benchmarks.results import find_campaign
from gigpo_jax.run.saved_runs import read_records
from gigpo_jax.tools.compare.runs import Run, read_run
from gigpo_jax.tools.compare.statistics import (
    MeanEstimate,
    correct_p_values,
    estimate_mean,
    estimate_p_value,
)

SEEDS = (0, 1, 2)
BASES = {
    "lake": {"gigpo": "vineppo carl regret earlier resample steps opd", "opd": "opd_f2b opd_b2f"},
    "house": {"grpo": "ema_grpo", "gigpo": "slea"},
    "corridor": {"grpo": "rebel"},
}


def read_arm(environment: str, arm: str) -> dict[int, tuple[Run, float]]:
    """Reads the finished runs of an arm: seed -> the run and the tokens that it generated."""
    runs = {}
    for folder in sorted(find_campaign("methods").glob(f"{environment}_{arm}_seed[0-9]")):
        run = read_run(folder)
        runs[run.seed] = (run, read_tokens(folder))
    return runs


def read_tokens(folder: Path) -> float:
    """Reads the number of tokens that a run generated."""
    _, records = read_records(folder)
    return sum(record.get("rollout/generated_tokens", 0.0) for record in records)


def read_outcomes(runs: dict[int, tuple[Run, float]], seeds: list[int]) -> np.ndarray:
    """Outcomes of the last evaluation, [seeds, G] f64."""
    return np.stack([runs[seed][0].won[-1] for seed in seeds])


def show_estimate(estimate: MeanEstimate, sign: str = "") -> str:
    """A mean in percent with its interval."""
    mean, low, high = (100 * value for value in estimate)
    return f"{mean:{sign}.1f} ({low:{sign}.1f} to {high:{sign}.1f})"


def list_arms(bases: dict[str, str]) -> dict[str, str | None]:
    """The arms of an environment, and what each is compared with."""
    arms: dict[str, str | None] = {}
    for base, names in bases.items():
        # A base may be an arm that has a base itself.
        arms.setdefault(base, None)
        arms |= dict.fromkeys(names.split(), base)
    return arms


def main() -> None:
    """Prints the table, with the seeds that all arms of an environment have."""
    rows: list[list[str]] = []
    p_values: list[float] = []
    rows_of_p_values = []
    for environment, bases in BASES.items():
        arms = list_arms(bases)
        runs = {arm: read_arm(environment, arm) for arm in arms}
        seeds = sorted(set.intersection(*(set(found) for found in runs.values())))
        missing = [
            f"{arm} {seed}" for arm, found in runs.items() for seed in SEEDS if seed not in found
        ]
        if missing:
            print(f"{environment}: not finished: {', '.join(missing)}")
        if not seeds:
            continue
        panels = {(run.panel, run.tasks) for found in runs.values() for run, _ in found.values()}
        assert len(panels) == 1, f"{environment}: runs have different panels"
        for arm, base in arms.items():
            outcomes = read_outcomes(runs[arm], seeds)
            tokens = np.mean([runs[arm][seed][1] for seed in seeds])
            row = [environment, arm, f"{tokens / 1000:.0f}", show_estimate(estimate_mean(outcomes))]
            if base:
                differences = outcomes - read_outcomes(runs[base], seeds)
                row.append(show_estimate(estimate_mean(differences), "+"))
                p_values.append(estimate_p_value(differences))
                rows_of_p_values.append(len(rows))
            by_seed = ", ".join(f"{100 * won.mean():.1f}" for won in outcomes)
            rows.append([*row, *[""] * (5 - len(row)), "", by_seed])
    # All differences of the protocol are one family, those without runs too.
    family_size = sum(
        base is not None for bases in BASES.values() for base in list_arms(bases).values()
    )
    padded = np.array(p_values + [1.0] * (family_size - len(p_values)))
    for number, p_value in zip(rows_of_p_values, correct_p_values(padded), strict=False):
        rows[number][5] = f"{p_value:.2g}"
    print("| environment | arm | tokens | success (95%) | minus base | p, Holm | by seed |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    main()
