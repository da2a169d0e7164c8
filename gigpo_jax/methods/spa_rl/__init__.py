"""SPA-RL (arXiv 2505.20732): a critic splits the outcome over the steps."""

from gigpo_jax.core.settings import Setting
from gigpo_jax.methods.spa_rl.advantages import spa_rl
from gigpo_jax.rl.algorithm_types import BASE, Algorithm
from gigpo_jax.rl.shared_settings import CRITIC, PER_TOKEN

METHOD = Algorithm(
    advantages=spa_rl,
    columns=(
        *PER_TOKEN,
        "executable",
    ),
    settings={
        BASE: Setting("gigpo", "algorithm that learns from the rewards of steps"),
    },
    signals=(CRITIC, "gigpo_jax.methods.spa_rl.executable:ExecutableActions"),
    critic_values=1,
)
