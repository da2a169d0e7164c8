"""Tags of a response's thought and the rules that reward them (RLVMR, arXiv 2507.22844, as in the authors' code).

An invalid step has no tag. A valid one has the first of planning, explore and reflection that its response holds:

    planning     1 if the episode succeeded
    explore      1 if no earlier valid step of the episode took the action
    reflection   1 if the step before was invalid or its action not admissible, and the action is another one; at the
                 first step 1

Everything else is 0. Our choice: the tags stand between <think> and </think> (prompt style "tagged"), so that a
response is valid by the same rule as without them. The monitor tag is asked for and counts as none, as in the authors'
code.
"""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from gigpo_jax.trajectory import Step

TAGS = ("planning", "explore", "reflection")  # their numbers count from 1; 0 is none


def tag_columns(steps: Sequence[Step]) -> dict[str, np.ndarray]:
    """The columns `tag` [N] i32 and `step_reward` [N] f32 of whole episodes, in any order."""
    tag, reward = np.zeros(len(steps), np.int32), np.zeros(len(steps), np.float32)
    episodes: dict[int, list[int]] = defaultdict(list)
    for row in sorted(range(len(steps)), key=lambda row: steps[row].step):
        episodes[steps[row].trajectory].append(row)
    for rows in episodes.values():
        taken: set[str] = set()
        for at, row in enumerate(rows):
            step, before = steps[row], steps[rows[at - 1]].turn if at else None
            tag[row] = _tag(step)
            if tag[row] == 1:
                reward[row] = step.won
            elif tag[row] == 2:
                reward[row] = step.turn.action not in taken
            elif tag[row] == 3:
                failed = before is None or not before.valid or before.admissible is False
                reward[row] = failed and (before is None or before.action != step.turn.action)
            if step.turn.valid:
                taken.add(step.turn.action)
    return {"tag": tag, "step_reward": reward}


def _tag(step: Step) -> int:
    if not step.turn.valid:
        return 0
    found = (n for n, name in enumerate(TAGS, 1) if f"<{name}>" in step.turn.response)
    return next(found, 0)
