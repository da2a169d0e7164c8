"""The algorithms by name: the values of `rl.algorithm` and `rl.preset`.

An algorithm is a function (`StepColumns`, keyword settings) -> `Advantages`, with the settings that
define it. To add one, write such a function and put it into `ALGORITHMS`, or name it as
`module:NAME` (docs/algorithm.md).
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

from gigpo_jax.core.errors import InputError, nearest_names
from gigpo_jax.core.references import find_entry
from gigpo_jax.core.settings import (
    FRACTION,
    NOT_NEGATIVE,
    POSITIVE,
    POSITIVE_FRACTION,
    Rule,
    Setting,
    at_least,
    one_of,
)
from gigpo_jax.rl.advantages import CHOICES, Advantages
from gigpo_jax.rl.methods.bilevel import bilevel
from gigpo_jax.rl.methods.carl import carl
from gigpo_jax.rl.methods.ema_grpo import ema_grpo
from gigpo_jax.rl.methods.empg import empg
from gigpo_jax.rl.methods.g2po import g2po
from gigpo_jax.rl.methods.gagpo import gagpo
from gigpo_jax.rl.methods.gigpo import gigpo
from gigpo_jax.rl.methods.graph_values import graph_values
from gigpo_jax.rl.methods.graphgpo import graphgpo
from gigpo_jax.rl.methods.hcapo import hcapo
from gigpo_jax.rl.methods.hgpo import hgpo
from gigpo_jax.rl.methods.hiper import hiper
from gigpo_jax.rl.methods.igpo import a2tgpo, igpo
from gigpo_jax.rl.methods.lite_ppo import lite_ppo
from gigpo_jax.rl.methods.max_rl import max_rl
from gigpo_jax.rl.methods.opd import distillation_advantages, opd
from gigpo_jax.rl.methods.oprl import oprl
from gigpo_jax.rl.methods.ppo import ppo
from gigpo_jax.rl.methods.rebel import rebel
from gigpo_jax.rl.methods.reinforce_pp import reinforce_pp, reinforce_pp_baseline
from gigpo_jax.rl.methods.repeat_discount import repeat_discount
from gigpo_jax.rl.methods.response_weight import response_weight, token_weights
from gigpo_jax.rl.methods.rloo import rloo
from gigpo_jax.rl.methods.rlvmr import rlvmr
from gigpo_jax.rl.methods.salt import salt
from gigpo_jax.rl.methods.serl import CONTEXTS, hindsight_advantages, serl
from gigpo_jax.rl.methods.spa_rl import spa_rl
from gigpo_jax.rl.methods.step_ppo import step_ppo
from gigpo_jax.rl.methods.strata import strata
from gigpo_jax.rl.methods.text_critic import text_critic
from gigpo_jax.rl.methods.tree import tree
from gigpo_jax.rl.methods.vineppo import vineppo
from gigpo_jax.rl.types import OPTIONAL_COLUMNS, OPTIONAL_FIELDS, StepColumns

# The switches on which published implementations differ; docs/algorithm.md explains them.
PRESETS: dict[str, dict[str, str | int]] = {
    "paper": {
        "episode_stats": "trajectory",
        "penalty_in": "reward",
        "singleton_episode": "zero",
        "ddof": 1,
    },
    "verl_agent": {
        "episode_stats": "step",
        "penalty_in": "row",
        "singleton_episode": "raw",
        "ddof": 1,
    },
}


# Names that `Algorithm.needs` may have. The learner's signals fill optional columns and fields of
# batches. "text_critic": the text critic fills the column `value`. "history": a prompt shows at
# least as many past steps as the setting `history`. The field "teacher" holds scores of a copy of
# the policy; with `FROZEN_TEACHER`, those of the model that the setting `teacher` names.
FROZEN_TEACHER = "frozen_teacher"
LESSONS = "lessons"  # prompts that show lessons of earlier episodes
NEEDS = (*OPTIONAL_COLUMNS, *OPTIONAL_FIELDS, "text_critic", "history", FROZEN_TEACHER, LESSONS)
BASE = "base"  # the setting of a wrapper that names the algorithm whose advantages it changes


@dataclass(frozen=True)
class Algorithm:
    """The differences of an algorithm to GiGPO.

    A wrapper has a setting `base`, the name of another algorithm. All fields but `advantages` are
    joined with those of the base, and its function gets `base`, a function `StepColumns` ->
    `Advantages`, and its own settings alone.

    Attributes:
      advantages: (`StepColumns`, keyword settings of preset and config) -> `Advantages`.
      needs: Some of `NEEDS`; the learner computes nothing else.
      settings: Settings that it alone has, `rl.settings` in the config, by name.
      fixed: Settings under `rl` without which it would be another algorithm; other values are
        refused.
      defaults: Defaults of settings under `rl`; values that the user gives win.
      token_weights: (action mask [R] bool of a response, its own settings as keywords) -> [R] f32,
        greater than 0: weights of the response's tokens in the loss; needs "action_mask". None: all
        are 1.
      token_advantages: Function of `LossSettings`, with its own settings as keywords; needs
        "teacher". The action mask is None unless it needs "action_mask" too.
      takes_forks: Whether its statistics of episodes leave forks out (docs/forks.md).
      fork_choice: Value of train.fork_choice without which it would be another algorithm; "": it
        needs no forks.
    """

    advantages: Callable[..., Advantages] = gigpo
    needs: tuple[str, ...] = ()
    settings: Mapping[str, Setting] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    token_weights: Callable[..., np.ndarray] | None = None
    token_advantages: Callable[..., Array] | None = None
    takes_forks: bool = False
    fork_choice: str = ""

    @property
    def needs_critic(self) -> bool:
        """True if a column holds a critic's values with targets.

        The targets come with the advantages.
        """
        # The text critic learns on the host and fills the column `value` too, but has no
        # update on devices.
        needs_values = not {"value", "token_value", "plan_value"}.isdisjoint(self.needs)
        return needs_values and "text_critic" not in self.needs


def is_served(teacher: str) -> bool:
    """Whether the setting `teacher` names servers and no model folder."""
    return teacher.startswith(("http://", "https://"))


MODEL = Rule(
    "a model folder, ORG/NAME of the Hub, or vLLM servers as http://host:port",
    lambda value: value != "",
)
NO_STEP = {"step_weight": 0.0}
# Each response counts once, as its ratio does. The authors' losses have no dual clip.
ONE_EACH = {"loss_mean": "responses", "dual_clip": 0.0}
STEP = {"step_weight": 1.0}  # the whole advantage is of the step
# Gains and outcomes have other units: both are standardised.
GAINS = NO_STEP | {"normalize": "mean_std"}
BASE_GRPO = Setting("grpo", "algorithm whose advantages are changed")
# With values of states nothing is compared within groups: other values of these would have no
# effect.
WHITENED = {"step_weight": 1.0, "normalize": "mean_std", "preset": "verl_agent"}
DIFFERENCES = STEP | {"normalize": "mean"}  # of values, as they are
BY_TURN = ONE_EACH | {"gamma": 0.99, "kl_coef": 0.001}
PER_TOKEN = ("tokens", "token_value")
LAM = Setting(1.0, "lambda of GAE; less: more weight on the critic, less variance", FRACTION)

ALGORITHMS: dict[str, Algorithm] = {
    "gigpo": Algorithm(takes_forks=True),
    "grpo": Algorithm(fixed=NO_STEP, takes_forks=True),
    # Dr. GRPO (arXiv 2503.20783): no division by the standard deviation, nor by the length of
    # responses.
    "dr_grpo": Algorithm(
        fixed=NO_STEP | {"normalize": "mean"}, defaults={"loss_mean": "constant"}, takes_forks=True
    ),
    # DAPO (arXiv 2503.14476): a higher upper clip, no KL term.
    "dapo": Algorithm(
        fixed=NO_STEP,
        defaults={"clip_low": 0.2, "clip_high": 0.28, "kl_coef": 0.0},
        takes_forks=True,
    ),
    # GSPO (arXiv 2507.18071, eq. 5): the ratio of whole responses is closer to 1, and so are its
    # clips.
    "gspo": Algorithm(
        fixed=NO_STEP | {"ratio": "sequence"},
        defaults=ONE_EACH | {"clip_low": 3e-4, "clip_high": 4e-4},
        takes_forks=True,
    ),
    # GMPO (arXiv 2507.20673): the clip is that of the paper, from exp(-0.4) to exp(0.4).
    "gmpo": Algorithm(
        fixed=NO_STEP | {"ratio": "hoelder_tokens", "hoelder_first": 0.0, "hoelder_last": 0.0},
        defaults=ONE_EACH | {"clip_low": 1 - math.exp(-0.4), "clip_high": math.exp(0.4) - 1},
        takes_forks=True,
    ),
    # HölderPO (arXiv 2605.12058): p falls from 1 to -1.
    "hoelder": Algorithm(fixed=NO_STEP | {"ratio": "hoelder"}, defaults=ONE_EACH, takes_forks=True),
    "rloo": Algorithm(advantages=rloo, fixed=NO_STEP | {"normalize": "mean"}),
    "reinforce_pp": Algorithm(advantages=reinforce_pp, fixed=STEP),
    "reinforce_pp_baseline": Algorithm(advantages=reinforce_pp_baseline, fixed=NO_STEP),
    # The divisor is the mean return: a standard deviation beside it would be another algorithm.
    "max_rl": Algorithm(advantages=max_rl, fixed=NO_STEP | {"normalize": "mean"}),
    # Published as a pair: this normalisation, and the loss as a mean over tokens.
    "lite_ppo": Algorithm(
        advantages=lite_ppo,
        fixed=NO_STEP | {"normalize": "mean_std"},
        defaults={"loss_mean": "tokens"},
    ),
    "ema_grpo": Algorithm(
        advantages=ema_grpo,
        needs=("task_deviation",),
        settings={
            # Both values are those of the published code.
            "decay": Setting(
                0.99, "weight of earlier iterations in the moments of a task type", FRACTION
            ),
            "guard": Setting(
                5.0,
                "largest advantage of a group that its task type's deviation divides; others are "
                "divided by their own",
                POSITIVE,
            ),
        },
        fixed=NO_STEP | {"normalize": "mean_std"},
    ),
    "hcapo": Algorithm(
        advantages=hcapo,
        needs=("hindsight_logprob",),
        settings={
            # temperature and ratio_clip are the paper's, and smooth=0.5 is its second form.
            "temperature": Setting(5.0, "divisor of log-probabilities in hindsight", POSITIVE),
            "ratio_clip": Setting(0.2, "largest distance of a step's weight to 1", FRACTION),
            "smooth": Setting(
                0.0, "share of the next step's value; 0.5: the smoothed form", FRACTION
            ),
        },
    ),
    "hgpo": Algorithm(
        advantages=hgpo,
        needs=("history",),
        settings={
            "history": Setting(
                2, "number of past steps that the deepest level compares", NOT_NEGATIVE
            ),
            "alpha": Setting(1.0, "exponent of the levels' weights", NOT_NEGATIVE),
            # Paper and code differ here; the default is that of the code.
            "weight_offset": Setting(
                1,
                "offset of the weights; 1: they count from 2, as in the authors' code; 0: from 1",
                one_of(0, 1),
            ),
            "base_group": Setting(False, "whether the episode advantage is a level too"),
        },
        fixed=STEP,
    ),
    "salt": Algorithm(
        advantages=salt,
        needs=("action", "next_anchor"),
        settings={BASE: BASE_GRPO},
        takes_forks=True,
    ),
    "empg": Algorithm(
        advantages=empg,
        needs=("entropy",),
        settings={
            BASE: BASE_GRPO,
            # k, k_next and zeta are those of a third party's code: the paper's are not known to us.
            "k": Setting(
                1.0, "factor of a step's uncertainty in the exponent of its weight", NOT_NEGATIVE
            ),
            "k_next": Setting(
                1.0,
                "factor of the next step's uncertainty in the exponent of its bonus",
                NOT_NEGATIVE,
            ),
            "zeta": Setting(0.05, "weight of the bonus for a certain next step", NOT_NEGATIVE),
        },
    ),
    "repeat_discount": Algorithm(
        advantages=repeat_discount,
        needs=("action",),
        settings={
            BASE: BASE_GRPO,
            # Both factors are those of DPEPO.
            "repeat": Setting(0.8, "factor for each earlier step with the same action", FRACTION),
            "pair": Setting(
                0.95, "factor for each earlier step with the same two last actions", FRACTION
            ),
        },
    ),
    "response_weight": Algorithm(
        advantages=response_weight,
        needs=("action_mask",),
        settings={
            BASE: BASE_GRPO,
            "thought": Setting(
                0.1,
                "weight of tokens outside the action; those of the action have 1",
                POSITIVE_FRACTION,
            ),
        },
        token_weights=token_weights,
    ),
    "serl": Algorithm(
        advantages=serl,
        needs=("action_mask", "teacher"),
        settings={
            BASE: BASE_GRPO,
            # The values of the authors' scripts, from here to `context`.
            "strength": Setting(0.5, "strength of hindsight in the first iteration", FRACTION),
            "iterations": Setting(
                50,
                "number of iterations in which the strength falls to 0; afterwards there is no "
                "scoring pass",
                at_least(1),
            ),
            "weight_clip": Setting(0.2, "largest distance of a token's weight from 1", FRACTION),
            "refresh": Setting(
                10,
                "number of iterations after which the copy of the policy is renewed",
                at_least(1),
            ),
            "context": Setting(
                "immediate_feedback",
                "context that the copy reads besides the prompt",
                one_of(*CONTEXTS, *(f"anchor_{context}" for context in CONTEXTS)),
            ),
            "trajectory_format": Setting(
                "response",
                "form of episodes in the context: responses alone, or behind their prompts",
                one_of("response", "observation_action"),
            ),
        },
        # The authors' scripts train without a KL term.
        defaults={"kl_coef": 0.0},
        token_advantages=hindsight_advantages,
    ),
    # TCOD's script has no KL term beside the teacher's.
    "opd": Algorithm(
        advantages=opd,
        needs=("teacher", FROZEN_TEACHER),
        settings={
            BASE: BASE_GRPO,
            "teacher": Setting(
                "", "model that scores responses, with the tokenizer of the policy", MODEL
            ),
            "strength": Setting(1.0, "weight of the teacher's log-ratio", POSITIVE),
            "outcome": Setting(
                0.0, "weight of the base's advantages; 0: the teacher alone", NOT_NEGATIVE
            ),
        },
        defaults={"kl_coef": 0.0},
        token_advantages=distillation_advantages,
    ),
    "rlvmr": Algorithm(advantages=rlvmr, needs=("tag", "step_reward")),
    # beta, the weight, the ratio of responses and the missing KL term are those of the paper.
    "oprl": Algorithm(
        advantages=oprl,
        needs=("implicit_reward",),
        settings={
            "beta": Setting(0.05, "factor of log-ratios in rewards and in the loss", POSITIVE),
            # The paper trains the copy as the policy.
            "copy_lr": Setting(1e-6, "learning rate of the copy", POSITIVE),
        },
        defaults=ONE_EACH | {"kl_coef": 0.0, "ratio": "sequence"},
    ),
    # gamma 1 is the published setting.
    "igpo": Algorithm(
        advantages=igpo, needs=("answer_logprob",), fixed=GAINS, defaults={"gamma": 1.0}
    ),
    "a2tgpo": Algorithm(
        advantages=a2tgpo,
        needs=("answer_logprob", "clip_scale"),
        settings={
            # alpha, the clips and the missing KL term are those of a copy of its code.
            "alpha": Setting(0.3, "weight of the information gains", NOT_NEGATIVE),
            "clip_scale": Setting(
                0.3, "largest relative change of a turn's clips by its gain", FRACTION
            ),
        },
        fixed=GAINS | {"ratio": "sequence"},
        defaults=ONE_EACH | {"gamma": 1.0, "clip_low": 3e-3, "clip_high": 4e-3, "kl_coef": 0.0},
    ),
    "tree": Algorithm(advantages=tree, needs=("action",), fixed=NO_STEP),
    "graph_values": Algorithm(
        advantages=graph_values,
        needs=("truncated",),
        settings={
            # 0: a longer sum of differences brings back the noise of the episode's own future.
            "lam": Setting(0.0, "lambda of GAE on the values of states", FRACTION),
            "episode": Setting(0.0, "weight of the episode advantage", NOT_NEGATIVE),
            "shrinkage": Setting(
                0.0,
                "number of visits with the mean return of the group, added to each state",
                NOT_NEGATIVE,
            ),
            "truncation": Setting(
                "end",
                "outcome of the last step before the limit of steps: end of the episode, or ignore",
                one_of("end", "ignore"),
            ),
        },
        fixed=STEP,
        takes_forks=True,
    ),
    "g2po": Algorithm(advantages=g2po, takes_forks=True),
    "graphgpo": Algorithm(
        advantages=graphgpo,
        needs=("won",),
        settings={
            # The value of a third party's code.
            "omega": Setting(
                0.1, "factor of a step's worth for each further step to success", POSITIVE_FRACTION
            ),
        },
        takes_forks=True,
    ),
    "gagpo": Algorithm(
        advantages=gagpo,
        # Our choice: no source that we have read names lam or the clips, so the clips
        # are those of GSPO.
        settings={"lam": replace(LAM, default=0.8)},
        fixed=STEP | {"ratio": "sequence"},
        defaults=ONE_EACH | {"clip_low": 3e-4, "clip_high": 4e-4},
        takes_forks=True,
    ),
    "vineppo": Algorithm(
        advantages=vineppo,
        needs=("past", "forked"),
        fixed=DIFFERENCES,
        takes_forks=True,
        fork_choice="uniform",
    ),
    "carl": Algorithm(
        advantages=carl, needs=("past",), fixed=DIFFERENCES, takes_forks=True, fork_choice="entropy"
    ),
    "text_critic": Algorithm(
        advantages=text_critic,
        needs=("value", "text_critic"),
        settings={"lam": Setting(0.7, "lambda of GAE over steps", FRACTION)},
        fixed=WHITENED,
    ),
    "spa_rl": Algorithm(
        advantages=spa_rl,
        needs=(*PER_TOKEN, "executable"),
        settings={
            BASE: Setting("gigpo", "algorithm that learns from the rewards of steps"),
            # That of the authors' code, where a won episode has the reward 1.
            "grounding": Setting(
                0.5, "reward of an executable action, in units of the reward", NOT_NEGATIVE
            ),
        },
    ),
    # PPO as verl-agent trains the baseline of the GiGPO paper.
    "ppo": Algorithm(
        ppo, needs=PER_TOKEN, settings={"lam": LAM}, fixed=WHITENED, defaults={"gamma": 1.0}
    ),
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
    # RAGEN (arXiv 2504.20073) and VAGEN, whose scripts have gamma 0.95 from step to step and 1 from
    # token to token.
    "bilevel": Algorithm(
        bilevel,
        needs=PER_TOKEN,
        settings={
            "lam": LAM,
            "token_gamma": Setting(1.0, "discount factor from token to token", FRACTION),
        },
        fixed=WHITENED,
        defaults={"gamma": 0.95},
    ),
    "strata": Algorithm(
        strata,
        needs=("strategy", "summary"),
        settings={
            "best": Setting(
                0.5,
                "share of a strategy's episodes, the best ones, whose mean return is its own",
                POSITIVE_FRACTION,
            )
        },
        fixed=NO_STEP,
    ),
    # ReBel (arXiv 2605.20061), with the values of its ALFWorld script.
    "rebel": Algorithm(
        rebel,
        needs=("belief", "belief_grade", "task_type"),
        settings={
            "state": Setting(0.4, "weight of what a belief says of the world", NOT_NEGATIVE),
            "phase": Setting(0.3, "weight of the phase of the task", NOT_NEGATIVE),
            "prediction": Setting(0.2, "weight of the predicted observation", NOT_NEGATIVE),
            "format": Setting(0.1, "weight of the format of the response", NOT_NEGATIVE),
        },
        fixed={"normalize": "mean"},
        defaults={"step_weight": 0.5, "clip_low": 0.2, "clip_high": 0.28},
    ),
    # SLEA-RL (arXiv 2603.18079): GiGPO with similar states, and a library (docs/experience.md).
    "slea": Algorithm(
        needs=(LESSONS,),
        fixed={"anchor_match": "similar"},
        defaults={"similarity": 0.85},
    ),
    # HiPER (arXiv 2602.16165), with the values of its ALFWorld code; WebShop has keep_penalty 3.5.
    "hiper": Algorithm(
        hiper,
        needs=("plan_value", "plan_start", "plan_changed", "token_part", "truncated"),
        settings={
            "lam": replace(LAM, help="lambda of GAE inside a segment with one subgoal"),
            "segment_lam": Setting(0.95, "lambda of GAE from segment to segment", FRACTION),
            "keep_penalty": Setting(
                0.3,
                "penalty of an episode that never switches its subgoal, in units of reward",
                NOT_NEGATIVE,
            ),
            "change_penalty": Setting(
                0.3,
                "penalty of a turn that keeps its subgoal and words it otherwise",
                NOT_NEGATIVE,
            ),
            "truncation": Setting(
                "own",
                "value behind an episode that used up its steps: its own (ALFWorld), or 0: end "
                "(WebShop)",
                one_of("own", "end"),
            ),
        },
        fixed=WHITENED,
        defaults={"gamma": 1.0},
    ),
}


def find_algorithm(name: str, settings: Mapping[str, Any] = MappingProxyType({})) -> Algorithm:
    """Finds an algorithm, a wrapper together with its base.

    Args:
      name: Key of `ALGORITHMS`, or "module:NAME" of an `Algorithm`.
      settings: Values of some of its own settings.

    Raises:
      InputError: The algorithm or a setting does not exist, or a value is not allowed.
    """
    algorithm = _find_known(name, "config.rl.algorithm")
    # First the base: its settings are names of the wrapper too.
    if BASE in algorithm.settings:
        base = settings.get(BASE, algorithm.settings[BASE].default)
        complaint = algorithm.settings[BASE].complaint(base)
        if complaint:
            raise InputError(complaint, key=f"config.rl.settings.{BASE}", value=repr(base))
        algorithm = _join_base(algorithm, base)
    for key, value in settings.items():
        if key not in algorithm.settings:
            near = nearest_names(key, algorithm.settings)
            names = ", ".join(algorithm.settings) or "none"
            raise InputError(
                f"no such setting of the algorithm {name}",
                key=f"config.rl.settings.{key}",
                fix=f"nearest: {', '.join(near)}" if near else f"it has {names}",
            )
        complaint = algorithm.settings[key].complaint(value)
        if complaint:
            raise InputError(complaint, key=f"config.rl.settings.{key}", value=repr(value))
    return algorithm


def check_fixed_point(settings: Mapping[str, Any], gamma: float) -> None:
    """Checks that values of states are unique.

    Raises:
      InputError: They are not: states on a loop that only truncated episodes pass have no way to
        an end.
    """
    if settings.get("truncation") != "ignore" or settings.get("shrinkage") != 0 or gamma < 1:
        return
    raise InputError(
        "a loop that only truncated episodes pass has no value with gamma 1",
        key="config.rl.settings.truncation",
        value="'ignore'",
        fix="use gamma below 1, or shrinkage above 0",
    )


def _join_base(wrapper: Algorithm, base_name: str) -> Algorithm:
    """Joins the fields of a wrapper and its base."""
    key = "config.rl.settings.base"
    base = _find_known(base_name, key)
    if BASE in base.settings:
        fix = "choose another algorithm"
        raise InputError("a wrapper itself", key=key, value=repr(base_name), fix=fix)
    # Its advantages are of tokens. A wrapper changes the total of a step, which the
    # loss would not read.
    if not {"token_value", "token_part"}.isdisjoint(base.needs):
        reason = "has no advantage of steps to change"
        raise InputError(reason, key=key, value=repr(base_name))
    # Steps that are in no loss have no advantage to average or to change.
    if base.fork_choice:
        raise InputError("leaves steps out of the loss", key=key, value=repr(base_name))
    if "value" in base.needs and wrapper.needs_critic:
        raise InputError("has a critic of its own", key=key, value=repr(base_name))
    # The wrapper comes last in each union: where both set something, its value stays.
    return replace(
        base,
        advantages=wrapper.advantages,
        token_weights=wrapper.token_weights or base.token_weights,
        token_advantages=wrapper.token_advantages or base.token_advantages,
        takes_forks=wrapper.takes_forks and base.takes_forks,
        needs=(*base.needs, *wrapper.needs),
        settings={**base.settings, **wrapper.settings},
        fixed={**base.fixed, **wrapper.fixed},
        defaults={**base.defaults, **wrapper.defaults},
    )


def _find_known(name: str, key: str) -> Algorithm:
    """Finds an algorithm without its base, and checks its needs."""
    algorithm = find_entry(name, ALGORITHMS, Algorithm, key=key)
    unknown_needs = sorted({*algorithm.needs} - {*NEEDS})
    if unknown_needs:
        raise InputError(
            f"needs {', '.join(unknown_needs)}",
            key=key,
            value=f'"{name}"',
            fix=f"there is {', '.join(NEEDS)}",
        )
    return algorithm


def make_advantages(
    name: str, preset: str, *, gamma: float, step_weight: float, normalize: str, **settings: Any
) -> Callable[[StepColumns], Advantages]:
    """Builds an algorithm's advantage function.

    Args:
      name: Name of an algorithm, as for `find_algorithm`.
      preset: Key of `PRESETS`.
      gamma: Discount factor of step returns.
      step_weight: Weight of the step advantage, unless the algorithm fixes it.
      normalize: "mean_std" or "mean", unless the algorithm fixes it.
      **settings: The algorithm's own settings, and switches that win over the preset.

    Raises:
      InputError: The algorithm, preset or a setting does not exist, or a value is not allowed.
    """
    if preset not in PRESETS:
        fix = f"choose one of {', '.join(PRESETS)}"
        raise InputError("no such preset", key="rl.preset", value=repr(preset), fix=fix)
    # One namespace at the call, two meanings: switches of GiGPO, and settings of the algorithm.
    switches = {key: value for key, value in settings.items() if key in CHOICES}
    given_settings = {key: value for key, value in settings.items() if key not in CHOICES}
    algorithm = find_algorithm(name, given_settings)
    own_settings = {
        key: given_settings.get(key, setting.default) for key, setting in algorithm.settings.items()
    }
    check_fixed_point(own_settings, gamma)
    common: dict[str, Any] = {"gamma": gamma, "step_weight": step_weight, "normalize": normalize}
    common |= switches
    # Other fixed settings, such as the ratio, are read by the loss and not by the function.
    common |= {key: value for key, value in algorithm.fixed.items() if key in common}
    if BASE not in own_settings:
        # The last one wins: a switch that the caller names replaces that of the preset.
        keywords = {**PRESETS[preset], **common, **own_settings}
        return _accept_no_rows(partial(algorithm.advantages, **keywords))

    # The settings of the wrapper are its function's, all others its base's.
    wrapper = _find_known(name, "config.rl.algorithm")
    wrapper_settings = {key: own_settings.pop(key) for key in wrapper.settings}
    base_name = wrapper_settings.pop(BASE)
    base = make_advantages(base_name, preset, **common, **own_settings)
    return _accept_no_rows(partial(algorithm.advantages, base=base, **wrapper_settings))


def _accept_no_rows(advantages: partial[Advantages]) -> Callable[[StepColumns], Advantages]:
    """Lets an advantage function take columns without rows.

    The function itself needs a row.
    """

    @wraps(advantages.func)  # its name is that of the compiled program
    def advantages_of_rows(columns: StepColumns) -> Advantages:
        if columns.mask.shape[0] == 0:
            empty = jnp.zeros(0, jnp.float32)
            return Advantages(empty, empty, empty)
        return advantages(columns)

    return advantages_of_rows
