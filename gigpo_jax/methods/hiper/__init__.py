"""HiPER (arXiv 2602.16165): advantages of actions, subgoals and switches on two time scales."""

from dataclasses import replace

from gigpo_jax.core.settings import NOT_NEGATIVE, Setting, one_of
from gigpo_jax.methods.hiper.advantages import hiper
from gigpo_jax.rl.algorithm_types import Algorithm
from gigpo_jax.rl.shared_settings import LAM, WHITENED

# HiPER (arXiv 2602.16165), with the values of its ALFWorld code; WebShop has keep_penalty 3.5.
METHOD = Algorithm(
    hiper,
    columns=(
        "plan_value",
        "plan_start",
        "plan_changed",
        "token_part",
        "truncated",
    ),
    settings={
        "lam": replace(LAM, help="lambda of GAE inside a segment with one subgoal"),
        "keep_penalty": Setting(
            0.3,
            "penalty of an episode that never switches its subgoal, in units of reward",
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
    critic_values=3,
    gives_tokens=True,
    signals=(
        "gigpo_jax.methods.hiper.plan_parts:PlanParts",
        "gigpo_jax.methods.hiper.plan_critic:PlanCritic",
    ),
)
