"""What an algorithm declares: its differences to GiGPO, which itself has none."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jax import Array

from gigpo_jax.core.references import load_reference
from gigpo_jax.core.settings import Setting
from gigpo_jax.rl.advantages import Advantages
from gigpo_jax.rl.gigpo import gigpo

BASE = "base"  # the setting of a wrapper that names the algorithm whose advantages it changes


@dataclass(frozen=True)
class Algorithm:
    """The differences of an algorithm to GiGPO.

    A wrapper has a setting `base`, the name of another algorithm. All fields but `advantages` are
    joined with the fields of the base. The function of the wrapper gets `base`, a function
    `StepColumns` -> `Advantages`, and its own settings alone.

    Attributes:
      advantages: (`StepColumns`, keyword settings of preset and config) -> `Advantages`.
      columns: Names of the optional columns that it reads.
      signals: "module:class" of each `learner.signals.base.Signal` that fills columns or fields of
        batches for it; the learner computes nothing else.
      critic_values: Number of values that a critic beside the policy estimates at a place; 0: it
        needs none. The targets come with the advantages.
      gives_tokens: Whether its advantages are of tokens.
      changes: Changes that it makes beside advantages, such as prompts; "": none.
      is_graded: Whether its advantages of steps say something without these changes.
      check: "module:function" that checks the config of an environment and raises InputError.
      settings: Settings that it alone has, `rl.settings` in the config, by name.
      fixed: Settings under `rl` without which it would be another algorithm; other values are
        refused.
      defaults: Defaults of settings under `rl`; values that the user gives win.
      token_weights: (action mask [R] bool of a response, its own settings as keywords) -> [R] f32,
        greater than 0: weights of the response's tokens in the loss; needs the signal
        `ActionSpans`. None: all are 1.
      token_advantages: Function of `LossSettings`, with its own settings as keywords; needs
        a signal that fills the field `teacher`. The action mask is None without `ActionSpans`.
      takes_forks: Whether its statistics of episodes leave forks out (docs/forks.md).
      fork_choice: Value of train.fork_choice without which it would be another algorithm; "": it
        needs no forks.
    """

    advantages: Callable[..., Advantages] = gigpo
    columns: tuple[str, ...] = ()
    signals: tuple[str, ...] = ()
    critic_values: int = 0
    gives_tokens: bool = False
    changes: str = ""
    is_graded: bool = True
    check: str = ""
    settings: Mapping[str, Setting] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    token_weights: Callable[..., np.ndarray] | None = None
    token_advantages: Callable[..., Array] | None = None
    takes_forks: bool = False
    fork_choice: str = ""

    def load_signals(self) -> list[Any]:
        """Imports the classes of its signals; a run whose algorithm has none imports none."""
        return [load_reference(name, key="config.rl.algorithm") for name in self.signals]


GIGPO = Algorithm(takes_forks=True)

NO_STEP = {"step_weight": 0.0}
# Each response counts once, as its ratio does. The authors' losses have no dual clip.
ONE_EACH = {"loss_mean": "responses", "dual_clip": 0.0}
