"""The tag of each response and the rule that rewards it, for RLVMR (arXiv 2507.22844)."""

from collections import defaultdict
from collections.abc import Sequence
from types import MappingProxyType

import numpy as np
from ml_collections import ConfigDict

from gigpo_jax.config.requirements import require
from gigpo_jax.env_bridge.prompts import CHAT
from gigpo_jax.learner.scored_steps import ScoredSteps
from gigpo_jax.learner.signals.base import Signal
from gigpo_jax.policy import Policy
from gigpo_jax.rl.column import Column
from gigpo_jax.trajectory import Step, Turn

TAGGED = ("tagged", f"{CHAT}_tagged")  # prompt styles that ask for tags
TAGS = ("planning", "explore", "reflection")  # their numbers count from 1; 0 is none
PLANNING, EXPLORE, REFLECTION = range(1, 4)


class Tags(Signal):
    """Numbers and rewards of tags, which depend on the text of responses alone."""

    columns = MappingProxyType(
        {
            "tag": Column("int32", None, "number of the response's first tag, 0 for none"),
            "step_reward": Column(
                "float32",
                None,
                "reward of a rule for the response, in the rule's units",
            ),
        }
    )
    reads_steps_alone = "compares responses by their tags, and {} has none"

    @classmethod
    def check(cls, config: ConfigDict, run: ConfigDict) -> None:
        """Checks that prompts ask for tags."""
        del run
        require(
            config.env.prompt in TAGGED,
            config,
            "env.prompt",
            f"{config.rl.algorithm} compares responses by their tags",
            f"use {TAGGED[0]}, in which prompts ask for them",
        )

    @classmethod
    def is_gradable(cls, config: ConfigDict, policy: Policy, steps: Sequence[Step]) -> bool:
        """Whether prompts ask for tags."""
        del policy, steps
        return config.env.prompt in TAGGED

    def compute_columns(self, scored: ScoredSteps) -> dict[str, np.ndarray]:
        """The columns of `tag_columns`."""
        return tag_columns(scored.steps)


def tag_columns(steps: Sequence[Step]) -> dict[str, np.ndarray]:
    """The columns `tag`, [N] i32, and `step_reward`, [N] f32, of whole episodes in any order."""
    tags = np.zeros(len(steps), np.int32)
    rewards = np.zeros(len(steps), np.float32)
    episodes: dict[int, list[int]] = defaultdict(list)
    # A reward depends on the earlier steps of its episode.
    for row in sorted(range(len(steps)), key=lambda row: steps[row].step):
        episodes[steps[row].trajectory].append(row)
    for rows in episodes.values():
        past_actions: set[str] = set()
        previous: Turn | None = None
        for row in rows:
            turn = steps[row].turn
            tags[row] = response_tag(turn)
            rewards[row] = tag_reward(int(tags[row]), steps[row], previous, past_actions)
            # Only valid steps count as past actions, as in the authors' code.
            if turn.valid:
                past_actions.add(turn.action)
            previous = turn
    return {"tag": tags, "step_reward": rewards}


def response_tag(turn: Turn) -> int:
    """Number of the first of `TAGS` in the response; 0 for no tag or an invalid response."""
    if turn.valid:
        # The order in TAGS decides, not the order in the text, as in the authors' code.
        for number, name in enumerate(TAGS, start=1):
            if f"<{name}>" in turn.response:
                return number
    return 0


def tag_reward(tag: int, step: Step, previous: Turn | None, past_actions: set[str]) -> float:
    """The reward of a tagged step, 0 or 1.

    Planning is rewarded if the episode is won, exploring if the action is new in the episode, and
    reflection if it changes the action after one that failed.
    """
    if tag == PLANNING:
        return float(step.episode.won)
    if tag == EXPLORE:
        return float(step.turn.action not in past_actions)
    if tag == REFLECTION:
        # A first step has nothing to reflect on; the authors' code rewards it.
        if previous is None:
            return 1.0
        failed = not previous.valid or previous.admissible is False
        return float(failed and previous.action != step.turn.action)
    return 0.0
