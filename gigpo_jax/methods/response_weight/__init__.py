"""Tokens of the thought count less in the loss than the action's: a proposal of this project."""

from gigpo_jax.core.settings import POSITIVE_FRACTION, Setting
from gigpo_jax.methods.response_weight.advantages import response_weight, token_weights
from gigpo_jax.rl.algorithm_types import BASE, Algorithm
from gigpo_jax.rl.shared_settings import ACTION_SPANS, BASE_GRPO

METHOD = Algorithm(
    advantages=response_weight,
    settings={
        BASE: BASE_GRPO,
        "thought": Setting(
            0.1,
            "weight of tokens outside the action; tokens of the action have 1",
            POSITIVE_FRACTION,
        ),
    },
    token_weights=token_weights,
    signals=(ACTION_SPANS,),
    changes="the weights of tokens",
)
