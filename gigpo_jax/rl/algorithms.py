"""The algorithms by name: the values of `rl.algorithm` and `rl.preset`.

An algorithm is a function (`StepColumns`, keyword settings) -> `Advantages`, with the settings that define it. To add
one, write such a function and put it into `ALGORITHMS`, or name it as `module:NAME` (docs/algorithm.md).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial, wraps
from types import MappingProxyType
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from gigpo_jax.errors import InputError, nearest
from gigpo_jax.references import find
from gigpo_jax.rl.advantages import CHOICES, Advantages
from gigpo_jax.rl.methods.bilevel import bilevel
from gigpo_jax.rl.methods.empg import empg
from gigpo_jax.rl.methods.gigpo import gigpo
from gigpo_jax.rl.methods.hgpo import hgpo
from gigpo_jax.rl.methods.igpo import a2tgpo, igpo
from gigpo_jax.rl.methods.ppo import ppo
from gigpo_jax.rl.methods.reinforce_pp import reinforce_pp, reinforce_pp_baseline
from gigpo_jax.rl.methods.repeat_discount import repeat_discount
from gigpo_jax.rl.methods.response_weight import response_weight, token_weights
from gigpo_jax.rl.methods.rloo import rloo
from gigpo_jax.rl.methods.rlvmr import rlvmr
from gigpo_jax.rl.methods.salt import salt
from gigpo_jax.rl.methods.serl import hindsight_advantages, serl
from gigpo_jax.rl.methods.step_ppo import step_ppo
from gigpo_jax.rl.methods.text_critic import text_critic
from gigpo_jax.rl.methods.tree import tree
from gigpo_jax.rl.types import OPTIONAL, StepColumns
from gigpo_jax.settings import FRACTION, NOT_NEGATIVE, PART, Setting, at_least, one_of

# The switches on which published implementations differ; docs/algorithm.md explains them.
PRESETS: dict[str, dict[str, str | int]] = {
    "paper": {"episode_stats": "trajectory", "penalty_in": "reward", "singleton_episode": "zero", "ddof": 1},
    "verl_agent": {"episode_stats": "step", "penalty_in": "row", "singleton_episode": "raw", "ddof": 1},
}


# What an algorithm may need beside the seven columns: optional columns; "action_mask" and "clip_scale" in
# its batches; "history": a prompt shows at least as many past steps as its setting `history` says; "text_critic":
# `value` is its; "teacher": in its batches too, of a copy of the policy that its settings `refresh` and `iterations`
# are of.
NEEDS = (*OPTIONAL, "text_critic", "action_mask", "clip_scale", "history", "teacher")
BASE = "base"  # the setting of a wrapper that names the algorithm whose advantages it changes


@dataclass(frozen=True)
class Algorithm:
    """How an algorithm differs from GiGPO.

    A wrapper has a setting `base`, the name of another algorithm. All fields but `advantages` are joined with those of
    the base, and its function gets `base`, a function `StepColumns` -> `Advantages`, and its own settings alone.

    Attributes:
      advantages: (`StepColumns`, keyword settings of preset and config) -> `Advantages`.
      needs: some of `NEEDS`; nothing else is computed.
      settings: its own settings, `rl.settings` in the config, by name.
      fixed: settings under `rl` without which it would be another algorithm; other values are refused.
      defaults: its own defaults of settings under `rl`; values that the user gives win.
      token_weights: (action mask [R] bool of a response, its own settings as keywords) -> [R] f32, greater than 0: the
        weights of the response's tokens in the loss; needs "action_mask". None: all are 1.
      token_advantages: as in `LossSettings`, with its own settings as keywords; needs "teacher" and "action_mask".
    """

    advantages: Callable[..., Advantages] = gigpo
    needs: tuple[str, ...] = ()
    settings: Mapping[str, Setting] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    token_weights: Callable[..., np.ndarray] | None = None
    token_advantages: Callable[..., Array] | None = None

    @property
    def needs_critic(self) -> bool:
        """Whether a column holds values of a critic, not of a text critic; the advantages have a target for it then."""
        return "text_critic" not in self.needs and not {"value", "token_value"}.isdisjoint(self.needs)


NO_STEP = {"step_weight": 0.0}
ONE_EACH = {"loss_mean": "responses", "dual_clip": 0.0}  # each response counts once, as its ratio does
STEP = {"step_weight": 1.0}  # the whole advantage is of the step
GAINS = NO_STEP | {"normalize": "mean_std"}  # gains and outcomes have other units: both are standardised
BASE_GRPO = Setting("grpo", "the algorithm whose advantages are changed")
# With values of states nothing is compared within groups: other values of these would have no effect.
WHITENED = {"step_weight": 1.0, "normalize": "mean_std", "preset": "verl_agent"}
BY_TURN = {"gamma": 0.99, "kl_coef": 0.001, "loss_mean": "responses"}
PER_TOKEN = ("tokens", "token_value")
LAM = Setting(1.0, "lambda of GAE; less: more weight on the critic, less variance", FRACTION)

ALGORITHMS: dict[str, Algorithm] = {
    "gigpo": Algorithm(),
    "grpo": Algorithm(fixed=NO_STEP),
    # Dr. GRPO (arXiv 2503.20783): no division by the standard deviation, nor by the length of responses.
    "dr_grpo": Algorithm(fixed=NO_STEP | {"normalize": "mean"}, defaults={"loss_mean": "constant"}),
    # DAPO (arXiv 2503.14476): a higher upper clip, no KL term.
    "dapo": Algorithm(fixed=NO_STEP, defaults={"clip_low": 0.2, "clip_high": 0.28, "kl_coef": 0.0}),
    # GSPO (arXiv 2507.18071, eq. 5): the ratio of whole responses is closer to 1, and so are its clips.
    "gspo": Algorithm(
        fixed=NO_STEP | {"ratio": "sequence"},
        defaults={"clip_low": 3e-4, "clip_high": 4e-4, "loss_mean": "responses"},
    ),
    # GMPO (arXiv 2507.20673): the clip is that of the paper, from exp(-0.4) to exp(0.4).
    "gmpo": Algorithm(
        fixed=NO_STEP | {"ratio": "hoelder_tokens", "hoelder_first": 0.0, "hoelder_last": 0.0},
        defaults=ONE_EACH | {"clip_low": 1 - math.exp(-0.4), "clip_high": math.exp(0.4) - 1},
    ),
    # HölderPO (arXiv 2605.12058): p falls from 1 to -1.
    "hoelder": Algorithm(fixed=NO_STEP | {"ratio": "hoelder"}, defaults=ONE_EACH),
    "rloo": Algorithm(advantages=rloo, fixed=NO_STEP | {"normalize": "mean"}),
    "reinforce_pp": Algorithm(advantages=reinforce_pp, fixed=STEP),
    "reinforce_pp_baseline": Algorithm(advantages=reinforce_pp_baseline, fixed=NO_STEP),
    "hgpo": Algorithm(
        advantages=hgpo,
        needs=("history",),
        settings={
            "history": Setting(2, "past steps that the deepest level compares", NOT_NEGATIVE),
            "alpha": Setting(1.0, "exponent of the levels' weights", NOT_NEGATIVE),
            "weight_offset": Setting(1, "weights count from 2 (1, the authors' code) or from 1 (0)", one_of(0, 1)),
            "base_group": Setting(False, "the episode advantage is a level too"),
        },
        fixed=STEP,
    ),
    "salt": Algorithm(advantages=salt, needs=("action", "next_anchor"), settings={BASE: BASE_GRPO}),
    "empg": Algorithm(
        advantages=empg,
        needs=("entropy",),
        settings={
            BASE: BASE_GRPO,
            "k": Setting(1.0, "how much certain steps gain", NOT_NEGATIVE),
            "k_next": Setting(1.0, "how fast the bonus falls with the entropy of the next step", NOT_NEGATIVE),
            "zeta": Setting(0.05, "weight of the bonus for a certain next step", NOT_NEGATIVE),
        },
    ),
    "repeat_discount": Algorithm(
        advantages=repeat_discount,
        needs=("action",),
        settings={
            BASE: BASE_GRPO,
            "repeat": Setting(0.8, "factor for each earlier step with the same action", FRACTION),
            "pair": Setting(0.95, "factor for each earlier step with the same two last actions", FRACTION),
        },
    ),
    "response_weight": Algorithm(
        advantages=response_weight,
        needs=("action_mask",),
        settings={
            BASE: BASE_GRPO,
            "thought": Setting(0.1, "weight of tokens outside the action; those of the action have 1", PART),
        },
        token_weights=token_weights,
    ),
    "serl": Algorithm(
        advantages=serl,
        needs=("action_mask", "teacher"),
        settings={
            BASE: BASE_GRPO,
            "strength": Setting(0.5, "of hindsight in the first iteration", FRACTION),
            "iterations": Setting(50, "in which the strength falls to 0; no scoring pass afterwards", at_least(1)),
            "weight_clip": Setting(0.2, "how far the weight of a token may be from 1", FRACTION),
            "refresh": Setting(10, "iterations after which the copy of the policy is renewed", at_least(1)),
        },
        defaults={"kl_coef": 0.0},
        token_advantages=hindsight_advantages,
    ),
    "rlvmr": Algorithm(advantages=rlvmr, needs=("tag", "step_reward")),
    "igpo": Algorithm(advantages=igpo, needs=("answer_logprob",), fixed=GAINS, defaults={"gamma": 1.0}),
    "a2tgpo": Algorithm(
        advantages=a2tgpo,
        needs=("answer_logprob", "clip_scale"),
        settings={
            "alpha": Setting(0.3, "weight of the information gains", NOT_NEGATIVE),
            "clip_scale": Setting(0.3, "how much the gain of a turn widens or narrows its clips", FRACTION),
        },
        fixed=GAINS | {"ratio": "sequence"},
        defaults={"gamma": 1.0, "clip_low": 3e-3, "clip_high": 4e-3, "kl_coef": 0.0, "loss_mean": "responses"},
    ),
    "tree": Algorithm(advantages=tree, needs=("action",), fixed=NO_STEP),
    "text_critic": Algorithm(
        advantages=text_critic,
        needs=("value", "text_critic"),
        settings={"lam": Setting(0.7, "lambda of GAE over steps", FRACTION)},
        fixed=WHITENED,
    ),
    # PPO as verl-agent trains the baseline of the GiGPO paper.
    "ppo": Algorithm(ppo, needs=PER_TOKEN, settings={"lam": LAM}, fixed=WHITENED, defaults={"gamma": 1.0}),
    # StepPO (arXiv 2604.18401), with clips, gamma and KL coefficient of its scripts.
    "step_ppo": Algorithm(
        step_ppo,
        needs=("value",),
        settings={"lam": LAM},
        fixed=WHITENED | {"ratio": "sequence"},
        defaults=BY_TURN | {"clip_low": 3e-4, "clip_high": 4e-4},
    ),
    # Turn-PPO (arXiv 2512.17008).
    "turn_ppo": Algorithm(
        step_ppo,
        needs=("value",),
        settings={"lam": replace(LAM, default=0.9)},
        fixed=WHITENED | {"ratio": "product"},
        defaults=BY_TURN,
    ),
    # RAGEN (arXiv 2504.20073) and VAGEN, whose scripts have gamma 0.95 from step to step and 1 from token to token.
    "bilevel": Algorithm(
        bilevel,
        needs=PER_TOKEN,
        settings={"lam": LAM, "token_gamma": Setting(1.0, "discount from token to token", FRACTION)},
        fixed=WHITENED,
        defaults={"gamma": 0.95},
    ),
}


def algorithm(name: str, settings: Mapping[str, Any] = MappingProxyType({})) -> Algorithm:
    """Looks an algorithm up, a wrapper together with its base.

    Args:
      name: a key of `ALGORITHMS`, or "module:NAME" for an `Algorithm` of one's own.
      settings: values of some of its own settings.

    Raises:
      InputError: there is none of that name, or it has no such setting, or not with that value.
    """
    found = _find(name, "config.rl.algorithm")
    if BASE in found.settings:
        base = _find(settings.get(BASE, found.settings[BASE].default), "config.rl.settings.base")
        if BASE in base.settings:
            raise InputError(f"config.rl.settings.base={settings[BASE]!r}: a wrapper itself; choose another algorithm")
        if "token_value" in base.needs:
            raise InputError(f"config.rl.settings.base={settings[BASE]!r}: has no advantage of steps to change")
        found = replace(
            base,
            advantages=found.advantages,
            token_weights=found.token_weights or base.token_weights,
            token_advantages=found.token_advantages or base.token_advantages,
            needs=(*base.needs, *found.needs),
            settings={**base.settings, **found.settings},
            fixed={**base.fixed, **found.fixed},
            defaults={**base.defaults, **found.defaults},
        )
    for key, value in settings.items():
        if key not in found.settings:
            near = nearest(key, found.settings)
            fix = f"nearest: {', '.join(near)}" if near else f"it has {', '.join(found.settings) or 'none'}"
            raise InputError(f"config.rl.settings.{key}: no such setting of the algorithm {name}; {fix}")
        if complaint := found.settings[key].complaint(value):
            raise InputError(f"config.rl.settings.{key}={value!r}: {complaint}")
    return found


def _find(name: str, key: str) -> Algorithm:
    found = find(name, ALGORITHMS, Algorithm, key=key)
    if unknown := sorted({*found.needs} - {*NEEDS}):
        raise InputError(f'{key}="{name}": needs {", ".join(unknown)}; there is {", ".join(NEEDS)}')
    return found


def make_advantages(
    name: str, preset: str, *, gamma: float, step_weight: float, normalize: str, **settings: Any
) -> Callable[[StepColumns], Advantages]:
    """Builds an algorithm's advantage function.

    Args:
      name: as for `algorithm`.
      preset: a key of `PRESETS`.
      gamma: discount of the step returns.
      step_weight: weight of the step advantage, unless the algorithm fixes it.
      normalize: "mean_std" or "mean", likewise.
      **settings: the algorithm's own settings, and switches that win over the preset.

    Raises:
      InputError: there is no algorithm, preset or setting of that name, or a value is not allowed.
    """
    if preset not in PRESETS:
        raise InputError(f"rl.preset={preset!r}: no such preset; choose one of {', '.join(PRESETS)}")
    switches = {key: value for key, value in settings.items() if key in CHOICES}
    own = {key: value for key, value in settings.items() if key not in CHOICES}
    chosen = algorithm(name, own)
    own = {key: own.get(key, setting.default) for key, setting in chosen.settings.items()}
    common: dict[str, Any] = {"gamma": gamma, "step_weight": step_weight, "normalize": normalize} | switches
    common |= {key: value for key, value in chosen.fixed.items() if key in common}
    if BASE not in own:
        return _of_rows(partial(chosen.advantages, **{**PRESETS[preset], **common, **own}))
    mine = {key: own.pop(key) for key in _find(name, "config.rl.algorithm").settings}
    base = make_advantages(mine.pop(BASE), preset, **common, **own)
    return _of_rows(partial(chosen.advantages, base=base, **mine))


def _of_rows(advantages: partial[Advantages]) -> Callable[[StepColumns], Advantages]:
    @wraps(advantages.func)  # its name is that of the compiled program
    def of(columns: StepColumns) -> Advantages:
        if columns.mask.shape[0] == 0:
            empty = jnp.zeros(0, jnp.float32)
            return Advantages(empty, empty, empty)
        return advantages(columns)

    return of
