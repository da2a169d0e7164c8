"""Writes docs/metrics.md from the descriptions that the loggers show."""

from pathlib import Path

from gigpo_jax.run.loggers.glossary import CHARTS, DESCRIPTIONS, METHOD_DESCRIPTIONS

HEAD = """# Metrics

The record of a run is `WORKDIR/metrics.jsonl`: one JSON object a line, where `step` is the number of finished
iterations. All [loggers](loggers.md) use the same names. Names that end with `_share` or `_fraction` are fractions from
0 to 1. `python docs/make_metrics.py` writes this page.

## What to look at

"""
NOTES = {
    "episode": "`episode/success_rate/TYPE` is the rate of a task type. `episode/regret` needs the option `regret` of the environment.",
    "credit": "What `credit/ambiguous_anchor_share` does not see: [which anchor](advantages.md#which-anchor).",
    "rollout": "[Forks and other starts](forks.md), [turns that are sampled again](tasks.md#turns-that-are-sampled-again), "
    "[groups without contrast](algorithm.md#groups-without-contrast).",
    "belief": "[Beliefs](plans.md#beliefs).",
    "experience": "[Lessons](experience.md).",
    "batch": "The steps of a [conversation](conversations.md#one-segment-of-a-row) share their tokens.",
    "val": "Of the panel, below `val/sampled/` and `val/greedy/`, also `score`, `length` and `aborted`, and by task type.",
    "time": "After the first iterations `time/compile` is near 0 and `compile/count` stays.",
}
END = """
With `env.mix` the metrics of `episode/`, `action/`, `credit/`, `response/`, `prompt/`, `rollout/` and `val/` also exist
for each environment, such as `action/valid_rate/LABEL`. `critic/*` and `preference/*` measure the
[models beside the policy](critic.md).
"""


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for title, charts in CHARTS.items():
        names = ", ".join(f"`{name}`" for chart in charts for name in chart)
        parts.append(f"- **{title.partition(' ')[2]}**: {names}\n")
    sections: dict[str, list[str]] = {}
    descriptions = dict(DESCRIPTIONS)
    for method_descriptions in METHOD_DESCRIPTIONS.values():
        descriptions |= method_descriptions
    for name in descriptions:
        section, _, rest = name.rpartition("/")
        sections.setdefault(section if rest and section else "val", []).append(name)
    for section, names in sections.items():
        parts.append(f"\n## {section}\n\n")
        if section in NOTES:
            parts.append(f"{NOTES[section]}\n\n")
        parts.append("| metric | meaning |\n|---|---|\n")
        parts += [f"| `{name}` | {descriptions[name]} |\n" for name in names]
    return "".join([*parts, END])


if __name__ == "__main__":
    Path(__file__).with_name("metrics.md").write_text(page(), encoding="utf-8")
