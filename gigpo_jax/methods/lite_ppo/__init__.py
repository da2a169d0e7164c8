"""Lite PPO (arXiv 2508.08221): the mean of the task group, the standard deviation of the batch."""

from gigpo_jax.methods.lite_ppo.advantages import lite_ppo
from gigpo_jax.rl.algorithm_types import NO_STEP, Algorithm

# Published as a pair: this normalisation, and the loss as a mean over tokens.
METHOD = Algorithm(
    advantages=lite_ppo,
    fixed=NO_STEP | {"normalize": "mean_std"},
    defaults={"loss_mean": "tokens"},
)
