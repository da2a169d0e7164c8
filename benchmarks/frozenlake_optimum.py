"""The best success on a FrozenLake panel that any policy can have, with and without slips.

    python -m benchmarks.frozenlake_optimum [RUN ...]

Dynamic programming over the steps that are left, exact for each lake; slips are random here, as the
agent does not know them. The last lines are of policies that do not look at the lake: fixed paths
of three moves right and three down. Each run without slips is compared with the path that is
nearest to its outcomes.
"""

import itertools
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gigpo_jax.env_bridge.panels import find_panel
from gigpo_jax.envs import registry
from gigpo_jax.envs.frozenlake.env import read_lake
from gigpo_jax.envs.frozenlake.lake import ACTIONS, Lake, find_letter, list_transitions, move
from gigpo_jax.envs.panels import panel_folder
from gigpo_jax.tools.compare.runs import read_run

PATHS = sorted(set(itertools.permutations(("right", "down") * 3)))


def find_best_success(lake: Lake, *, is_slippery: bool, steps: int) -> float:
    """The largest probability of reaching the goal from the start.

    Args:
      lake: Lines of letters.
      is_slippery: Whether moves slip.
      steps: Largest number of moves.
    """
    cells = range(len(lake) * len(lake[0]))
    success = np.array([find_letter(lake, cell) == "G" for cell in cells], float)
    for _ in range(steps):
        by_action = [
            [
                sum(
                    result.probability * success[result.cell]
                    for result in list_transitions(lake, cell, number, is_slippery=is_slippery)
                )
                for cell in cells
            ]
            for number in range(len(ACTIONS))
        ]
        success = np.max(by_action, axis=0)
    return float(success[0])


def reaches_goal(lake: Lake, path: Sequence[str]) -> bool:
    """Whether moves without slips end at the goal; a hole ends them before."""
    cell = 0
    for action in path:
        cell = move(lake, cell, ACTIONS.index(action))
        if find_letter(lake, cell) in "HG":
            break
    return find_letter(lake, cell) == "G"


def main(folders: Sequence[str]) -> None:
    """Prints the means over the panel `test`, and what the runs in the folders are near to."""
    env = registry.make("frozenlake")
    panel = find_panel("test", "frozenlake", panel_folder("frozenlake"))
    tasks = {task.id: task for task in env.tasks("test")}
    lakes = [read_lake(env.reset(tasks[task_id]).anchor) for task_id in panel.ids]
    # The numbers of moves of benchmarks/protocols/frozenlake_pooled.md.
    for is_slippery, steps in ((False, 15), (True, 30)):
        best = [find_best_success(lake, is_slippery=is_slippery, steps=steps) for lake in lakes]
        print(f"slippery={is_slippery}, {steps} moves: {100 * np.mean(best):.1f}%")
    outcomes = {path: np.array([reaches_goal(lake, path) for lake in lakes]) for path in PATHS}
    for path, won in outcomes.items():
        print(f"{' '.join(path)}: {100 * np.mean(won):.1f}%")
    for folder in folders:
        run = read_run(Path(folder))
        assert run.tasks == tuple(panel.ids), f"{folder} has another panel"
        differences = {path: np.sum(run.won[-1] != won) for path, won in outcomes.items()}
        path = min(differences, key=lambda path: differences[path])
        print(
            f"{Path(folder).name}: {run.won[-1].sum():.0f} lakes won, "
            f"{differences[path]} outcomes are not those of {' '.join(path)}"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
