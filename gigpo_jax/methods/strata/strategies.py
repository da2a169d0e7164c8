"""The strategy of each step's episode, for StraTA (arXiv 2605.06642)."""

from collections.abc import Sequence
from types import MappingProxyType

import numpy as np
from ml_collections import ConfigDict

from gigpo_jax.config.requirements import require
from gigpo_jax.learner.scored_steps import ScoredSteps
from gigpo_jax.learner.signals.base import Signal
from gigpo_jax.methods.strata.episode_part import STRATEGY_NUMBER
from gigpo_jax.methods.strata.plan import STRATEGY
from gigpo_jax.policy import Policy
from gigpo_jax.rl.column import Column
from gigpo_jax.trajectory import Step


class Strategies(Signal):
    """Numbers of strategies, distinct within a group."""

    columns = MappingProxyType(
        {
            "strategy": Column(
                "int32",
                None,
                "strategy of the trajectory; distinct within a group",
            ),
        }
    )

    @classmethod
    def check(cls, config: ConfigDict, run: ConfigDict) -> None:
        """Checks that episodes have strategies, and several of each."""
        reason = f"{config.rl.algorithm} compares strategies"
        require(config.env.plan == STRATEGY, config, "env.plan", reason, f"use {STRATEGY}")
        size = run.train.group_size
        episodes = run.train.strategy_episodes
        key = "train.strategy_episodes"
        reason = "each strategy has as many episodes"
        require(size % episodes == 0, run, key, reason, f"a divisor of train.group_size={size}")
        reason = "episodes of one strategy are compared, and strategies of one task"
        require(1 < episodes < size, run, key, reason, "such as 8 with train.group_size=32")

    @classmethod
    def is_gradable(cls, config: ConfigDict, policy: Policy, steps: Sequence[Step]) -> bool:
        """Whether episodes share strategies."""
        del config, policy
        strategies = {(step.episode.group, step.turn.extra.get(STRATEGY_NUMBER)) for step in steps}
        # Some of them, and not of each episode its own.
        has_numbers = None not in {number for _, number in strategies}
        return has_numbers and len(strategies) < len({step.trajectory for step in steps})

    def compute_columns(self, scored: ScoredSteps) -> dict[str, np.ndarray]:
        """The number of each step's strategy, [N] i32."""
        numbers = [step.turn.extra[STRATEGY_NUMBER] for step in scored.steps]
        return {"strategy": np.array(numbers, np.int32)}
