"""What a config optimizes: algorithm, loss and optimizer."""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import optax
from ml_collections import ConfigDict

from gigpo_jax.rl import advantages as rl_advantages
from gigpo_jax.rl import algorithms
from gigpo_jax.rl.losses import LossSettings
from gigpo_jax.rl.optimizer import Optimizer, make_optimizer
from gigpo_jax.rl.types import StepColumns


def config_algorithm(config: ConfigDict) -> algorithms.Algorithm:
    """The algorithm of a config."""
    return algorithms.find_algorithm(config.rl.algorithm, config.rl.settings)


class Objective(NamedTuple):
    """The mathematical part of a config: the jitted advantages, and the policy's loss."""

    advantages: Callable[[StepColumns], rl_advantages.Advantages]
    loss: LossSettings


def make_objective(config: ConfigDict) -> Objective:
    """Builds the objective of `config.rl`; `config` is as from `config.resolve`."""
    rl = config.rl
    advantages = algorithms.make_advantages(
        rl.algorithm,
        rl.preset,
        gamma=rl.gamma,
        step_weight=rl.step_weight,
        normalize=rl.normalize,
        **rl.settings,
    )
    token_advantages = config_algorithm(config).token_advantages
    if token_advantages is not None:
        token_advantages = functools.partial(token_advantages, **rl.settings)
    # In the loss: a KL term of rewards is in the advantages already, and 0 stands for no dual clip.
    loss = LossSettings(
        clip_low=rl.clip_low,
        clip_high=rl.clip_high,
        dual_clip=rl.dual_clip or math.inf,
        kl_coef=rl.kl_coef if rl.kl_in == "loss" else 0.0,
        entropy_coef=rl.entropy_coef,
        correction=rl.importance_correction,
        importance_cap=rl.importance_cap,
        ratio=rl.ratio,
        # T of HölderPO is the number of iterations, our choice: the script of its authors has 1000
        # for runs of 150.
        power=optax.linear_schedule(rl.hoelder_first, rl.hoelder_last, config.train.iterations),
        mean=rl.loss_mean,
        # Dr. GRPO divides by a constant: a division by the length would make long wrong
        # responses cheap.
        constant=config.sampling.max_response_tokens,
        token_advantages=token_advantages,
    )
    # jit here: a function of a user's own module need not be jitted.
    return Objective(jax.jit(advantages), loss)


def make_config_optimizer(config: ConfigDict, total: int) -> Optimizer:
    """Builds the optimizer of `config.optim` with a schedule of `total` iterations or updates."""
    return make_optimizer(total=total, **config.optim)
