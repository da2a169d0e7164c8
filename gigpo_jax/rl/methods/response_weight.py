"""A proposal of this project: tokens of the thought count less in the loss than tokens of the action.

A token outside the response's action span has weight `thought`, one inside 1; all terms and means of the loss have
these weights. A wrapper: advantages are those of `base`. ActFocus (arXiv 2605.14558) lowers the gradients of reasoning
too; its weights are not known to us, and this is not ActFocus.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from gigpo_jax.rl.advantages import Advantages
from gigpo_jax.rl.types import StepColumns


def response_weight(columns: StepColumns, *, base: Callable[[StepColumns], Advantages], thought: float) -> Advantages:
    """Those of `base`; `token_weights` has the effect."""
    del thought
    return base(columns)


def token_weights(action_mask: np.ndarray, *, thought: float, **settings: Any) -> np.ndarray:
    """[R] bool, the tokens of the action -> [R] f32, their weights; a response without an action is all thought."""
    del settings
    return np.where(action_mask, 1.0, thought).astype(np.float32)
