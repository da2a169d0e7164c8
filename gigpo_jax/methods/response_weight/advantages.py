"""Tokens of the thought count less in the loss than the action's: a proposal of this project.

A token outside the response's action span has weight `thought`, one inside 1; all terms and means
of the loss have these weights. A wrapper: advantages are from `base`. ActFocus (arXiv
2605.14558) lowers the gradients of reasoning too; its weights are not known to us, and this is not
ActFocus.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from gigpo_jax.rl.advantages import Advantages
from gigpo_jax.rl.types import StepColumns


def response_weight(
    columns: StepColumns, *, base: Callable[[StepColumns], Advantages], thought: float
) -> Advantages:
    """Returns the advantages of `base`; `token_weights` has the effect."""
    del thought
    return base(columns)


def token_weights(action_mask: np.ndarray, *, thought: float, **settings: Any) -> np.ndarray:
    """Weighs the tokens of a response, which is all thought if it has no action.

    Args:
      action_mask: [R] bool, tokens of the action.
      thought: Weight of the other tokens.
      **settings: Settings of `base`, not read.

    Returns:
      [R] f32.
    """
    del settings
    return np.where(action_mask, 1.0, thought).astype(np.float32)
