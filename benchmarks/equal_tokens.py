"""The table of benchmarks/protocols/equal_tokens.md, from benchmarks/results.

    python -m benchmarks.equal_tokens

Each arm is compared with its base by the runs that the protocol chooses by their tokens.
"""

from typing import NamedTuple

import numpy as np

from benchmarks import method_runs
from benchmarks.method_runs import list_arms, read_tokens, show_estimate
from benchmarks.results import find_campaign
from gigpo_jax.tools.compare.runs import Run, read_run
from gigpo_jax.tools.compare.statistics import correct_p_values, estimate_mean, estimate_p_value

BASES = {
    "learned": {"gigpo": "copy progress starts"},
    "lake": method_runs.BASES["lake"],
    "corridor": {"subgoal": "hiper"},
}
# Runs of the earlier protocols, made again where their tokens were not equal.
# Their campaigns, and how names of runs begin there.
EARLIER = {
    "learned": ("learned_rewards", ""),
    "lake": ("methods", "lake_"),
    "corridor": ("corridor_plans", ""),
}
TOLERANCE = 0.05  # of equal tokens, a fraction


class CountedRun(NamedTuple):
    """A run and the number of tokens that it generated."""

    run: Run
    tokens: float

    @property
    def won(self) -> np.ndarray:
        """Outcomes of the last evaluation, [G] f64."""
        return self.run.won[-1]


def read_tries(environment: str, arm: str, seed: int) -> list[CountedRun]:
    """The runs of an arm with a seed; the earlier one is the first."""
    name = f"{arm}_seed{seed}"
    campaign, prefix = EARLIER[environment]
    folders = [find_campaign(campaign) / f"{prefix}{name}"]
    folders += sorted(find_campaign("equal_tokens").glob(f"{environment}_{name}_*"))
    return [CountedRun(read_run(folder), read_tokens(folder)) for folder in folders]


def choose_run(tries: list[CountedRun], tokens: float) -> CountedRun:
    """The run nearest to a number of tokens."""
    return min(tries, key=lambda counted: abs(counted.tokens - tokens))


def choose_pair(environment: str, arm: str, seed: int) -> tuple[CountedRun, CountedRun]:
    """The runs of an arm and its base that are compared."""
    base = list_arms(BASES[environment])[arm]
    if base is None:
        (first, *_) = read_tries(environment, arm, seed)
        return first, first
    base_run, _ = choose_pair(environment, base, seed)
    run = choose_run(read_tries(environment, arm, seed), base_run.tokens)
    if abs(run.tokens / base_run.tokens - 1) > TOLERANCE:
        # Iterations of the arm are too large.
        base_run = choose_run(read_tries(environment, base, seed), run.tokens)
    return run, base_run


def show_iterations(run: CountedRun, base_run: CountedRun) -> str:
    """Iterations of a run and its base, and the difference of their tokens in percent."""
    iterations = f"{run.run.iterations[-1]} / {base_run.run.iterations[-1]}"
    return f"{iterations} ({100 * (run.tokens / base_run.tokens - 1):+.0f})"


def main() -> None:
    """Prints the table."""
    rows: list[list[str]] = []
    p_values: list[float] = []
    for environment, bases in BASES.items():
        for arm, base in list_arms(bases).items():
            if base is None:
                continue
            pairs = [choose_pair(environment, arm, seed) for seed in method_runs.SEEDS]
            outcomes = np.stack([run.won for run, _ in pairs])
            differences = outcomes - np.stack([base_run.won for _, base_run in pairs])
            earlier = [
                read_tries(environment, arm, seed)[0].won
                - read_tries(environment, base, seed)[0].won
                for seed in method_runs.SEEDS
            ]
            rows.append(
                [
                    environment,
                    f"{arm} minus {base}",
                    ", ".join(show_iterations(*pair) for pair in pairs),
                    f"{100 * outcomes.mean():.1f}",
                    f"{100 * np.mean(earlier):+.1f}",
                    show_estimate(estimate_mean(differences), "+"),
                ]
            )
            p_values.append(estimate_p_value(differences))
    for row, p_value in zip(rows, correct_p_values(np.array(p_values)), strict=True):
        row.append(f"{p_value:.2g}")
    print(
        "| environment | arm | iterations / base's (tokens minus base's, %) | success "
        "| minus base, before | minus base | p, Holm |"
    )
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    main()
