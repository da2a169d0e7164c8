"""The tasks of a run with several environments (`env.mix`): their shares, and their panels."""

from collections import Counter
from collections.abc import Mapping

import numpy as np

from gigpo_jax.env_bridge.panels import Panel

# Last number of the seed of random starts; seeds of other draws do not have it.
_STARTS = 1 << 31


def mix_environments(
    iteration: int, groups: int, seed: int, shares: Mapping[str, float]
) -> tuple[list[str], Counter[str]]:
    """Returns the label of each group of an iteration, and earlier groups of the same label.

    Systematic sampling: the points of an iteration have equal distances and a random start.
    """
    labels = list(shares)
    ends = np.cumsum(list(shares.values()))[:-1]
    # All earlier iterations are assigned again: their counts need not be stored.
    starts = np.random.default_rng((seed, len(labels), _STARTS)).random(iteration + 1)
    points = (np.arange(groups) + starts[:, None]) / groups
    assignments = np.searchsorted(ends, points, side="right")
    # The points are sorted, and hosts take contiguous shares of the groups: in their order a host
    # would play one environment alone.
    newest = np.random.default_rng((seed, iteration)).permutation(assignments[-1])
    counts = np.bincount(assignments[:-1].ravel(), minlength=len(labels))
    earlier_groups = Counter(dict(zip(labels, counts.tolist(), strict=True)))
    return [labels[index] for index in newest], earlier_groups


def join_panels(panels: Mapping[str, Panel]) -> Panel:
    """Joins the panels of environments, by label, into one whose ids begin with the label."""
    tasks = []
    for label, panel in panels.items():
        tasks += [(f"{label}/{task}", digest) for task, digest in panel.tasks]
    return Panel(
        "+".join(panel.name for panel in panels.values()),
        "+".join(panel.environment for panel in panels.values()),
        "+".join(panel.split for panel in panels.values()),
        tuple(tasks),
    )
