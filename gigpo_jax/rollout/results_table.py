"""The table of an evaluation."""


def results_table(results: dict[str, dict[str, dict]]) -> str:
    """A Markdown table of `results.summarise_outcomes` results.

    Args:
      results: Summary by decoding, such as {"temperature 0.4": ..., "greedy": ...}.
    """
    lines = [
        "| decoding | task type | episodes | success % | 95% | score | steps |",
        "|---|---|---|---|---|---|---|",
    ]
    for decoding, summary in results.items():
        for name, row in summary.items():
            low, high = row["success_interval"]
            lines.append(
                f"| {decoding} | {name} | {row['episodes']} | {100 * row['success_rate']:.1f} | "
                f"{100 * low:.1f} to {100 * high:.1f} | {row['score']:.3f} | {row['length']:.1f} |"
            )
        # With one type its mean is the row of all.
        if len(summary) > 2:
            average = 100 * summary["all"]["type_average"]
            # A task type of `env.mix` is LABEL/TYPE, beside a row of the environment LABEL.
            is_mixed = any(name.partition("/")[0] in summary for name in summary if "/" in name)
            averaged = "environments" if is_mixed else "types"
            lines.append(
                f"| {decoding} | unweighted mean of the {averaged} | | {average:.1f} | | | |"
            )
    for decoding, summary in results.items():
        aborted = summary["all"]["aborted"]
        if aborted:
            dependent = summary["all"]["aborted_policy_dependent"]
            lines.append(
                f"{decoding}: {aborted} episodes were aborted and left out "
                f"({dependent} policy-dependent)"
            )
    return "\n".join(lines)
