"""Which steps have executable actions, for SPA-RL (arXiv 2505.20732)."""

from types import MappingProxyType

import numpy as np

from gigpo_jax.learner.scored_steps import ScoredSteps
from gigpo_jax.learner.signals.base import Signal
from gigpo_jax.rl.column import Column


class ExecutableActions(Signal):
    """Whether responses keep to the format, and their actions to a list."""

    columns = MappingProxyType(
        {
            "executable": Column(
                "bool",
                None,
                "whether the response follows the format and the environment did not "
                "leave its action out of a list",
            ),
        }
    )

    def compute_columns(self, scored: ScoredSteps) -> dict[str, np.ndarray]:
        """One flag a step, [N] bool."""
        turns = [step.turn for step in scored.steps]
        # A summary is no action.
        flags = [turn.valid and turn.admissible is not False and not turn.is_text for turn in turns]
        return {"executable": np.array(flags, bool)}
