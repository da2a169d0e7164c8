"""The table of docs/protocols/methods.md, from benchmarks/results/methods.

    python -m benchmarks.method_runs

`gigpo compare` refuses arms whose episodes or numbers of iterations differ, as these do; means,
intervals and p-values are its own.
"""

from pathlib import Path

import numpy as np

from gigpo_jax.run.records import read_records
from gigpo_jax.tools.compare.runs import read_run
from gigpo_jax.tools.compare.statistics import (
    MeanEstimate,
    correct_p_values,
    estimate_mean,
    estimate_p_value,
)

RESULTS = Path(__file__).parent / "results/methods"
BASES = {
    "lake": {"gigpo": "vineppo carl regret earlier resample steps opd", "opd": "opd_f2b opd_b2f"},
    "house": {"grpo": "ema_grpo", "gigpo": "slea"},
    "corridor": {"grpo": "rebel"},
}


def read_arm(environment: str, arm: str) -> tuple[dict[int, np.ndarray], list[float]]:
    """Reads the finished runs of an arm.

    Returns:
      Outcomes of the last evaluation, seed -> [G] f64, and the tokens of each run.
    """
    outcomes = {}
    tokens = []
    for folder in sorted(RESULTS.glob(f"{environment}_{arm}_seed[0-9]")):
        run = read_run(folder)
        outcomes[run.seed] = run.won[-1]
        _, records = read_records(folder)
        tokens.append(sum(record.get("rollout/generated_tokens", 0.0) for record in records))
    return outcomes, tokens


def show_estimate(estimate: MeanEstimate, sign: str = "") -> str:
    """A mean in percent with its interval."""
    mean, low, high = (100 * value for value in estimate)
    return f"{mean:{sign}.1f} ({low:{sign}.1f} to {high:{sign}.1f})"


def main() -> None:
    """Prints the table, with as many seeds as an arm and its base have."""
    rows: list[list[str]] = []
    p_values = []
    for environment, bases in BASES.items():
        for base, names in bases.items():
            base_outcomes, _ = read_arm(environment, base)
            arms = names.split() if base == "opd" else [base, *names.split()]
            for arm in arms:
                outcomes, tokens = read_arm(environment, arm)
                if not outcomes:
                    continue
                success = estimate_mean(np.stack([*outcomes.values()]))
                by_seed = ", ".join(f"{100 * won.mean():.1f}" for won in outcomes.values())
                row = [environment, arm, f"{np.mean(tokens) / 1000:.0f}", show_estimate(success)]
                seeds = sorted(outcomes.keys() & base_outcomes.keys())
                if arm != base and seeds:
                    differences = np.stack([outcomes[s] - base_outcomes[s] for s in seeds])
                    row.append(f"{show_estimate(estimate_mean(differences), '+')}")
                    p_values.append((len(rows), estimate_p_value(differences)))
                rows.append([*row, *[""] * (5 - len(row)), "", by_seed])
    corrected = correct_p_values(np.array([p for _, p in p_values]))
    for (number, _), p_value in zip(p_values, corrected, strict=True):
        rows[number][5] = f"{p_value:.2g}"
    print("| environment | arm | tokens | success (95%) | less base | p, Holm | by seed |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    main()
