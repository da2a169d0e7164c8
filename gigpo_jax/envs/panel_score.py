"""Success on a panel, from the results of any program that played its tasks."""

import json
from pathlib import Path

from gigpo_jax.core.errors import InputError
from gigpo_jax.core.proportion import wilson_interval
from gigpo_jax.env_bridge.panels import Panel

FORM = 'lines {"id": "..", "won": true}, one for each task'


def score_results(panel: Panel, path: Path) -> str:
    """Returns the line that says how many tasks of a panel were won, with the 95% interval.

    Args:
      panel: Panel whose tasks were played.
      path: File of JSON lines with the id of each task and whether it was won.

    Raises:
      InputError: A line is none, or the tasks are not those of the panel, once each.
    """
    wins = _read_wins(path)
    if unknown := sorted(wins.keys() - {*panel.ids}):
        raise InputError(
            f"{len(unknown)} tasks are not of the panel, such as {unknown[0]!r:.200}",
            key="--results",
            value=path,
            fix=f"its ids are like {panel.ids[0]!r}",
        )
    if missing := [task_id for task_id in panel.ids if task_id not in wins]:
        raise InputError(
            f"{len(missing)} of {len(panel.ids)} tasks of the panel are missing, such as "
            f"{missing[0]!r}",
            key="--results",
            value=path,
            fix="play them; a part of a panel is no result for it",
        )
    count = sum(wins.values())
    low, high = wilson_interval(count, len(wins))
    return (
        f"{panel.environment} {panel.name}: success {count} of {len(wins)}, "
        f"{count / len(wins):.1%} [{low:.1%}, {high:.1%}]"
    )


def _read_wins(path: Path) -> dict[str, bool]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as err:
        raise InputError("cannot be read", key="--results", value=path, fix=FORM) from err
    wins: dict[str, bool] = {}
    for number, line in enumerate(lines, 1):
        try:
            content = json.loads(line)
            task_id = content["id"]
            won = content["won"]
        except (ValueError, LookupError, TypeError, RecursionError):
            task_id = won = None
        if not isinstance(task_id, str) or not isinstance(won, bool):
            raise InputError(f"line {number} is wrong", key="--results", value=path, fix=FORM)
        if task_id in wins:
            reason = f"line {number} repeats the task {task_id!r:.200}"
            raise InputError(reason, key="--results", value=path, fix=FORM)
        wins[task_id] = won
    return wins
