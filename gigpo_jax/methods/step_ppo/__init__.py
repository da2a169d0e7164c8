"""StepPO (arXiv 2604.18401); also the advantage of Turn-PPO (arXiv 2512.17008)."""

from dataclasses import replace

from gigpo_jax.methods.step_ppo.advantages import step_ppo
from gigpo_jax.rl.algorithm_types import Algorithm
from gigpo_jax.rl.shared_settings import BY_TURN, CRITIC, LAM, WHITENED

# StepPO (arXiv 2604.18401), with clips, gamma and KL coefficient of its scripts.
METHOD = Algorithm(
    step_ppo,
    columns=("value",),
    settings={"lam": LAM},
    fixed=WHITENED | {"ratio": "sequence"},
    defaults=BY_TURN | {"clip_low": 3e-4, "clip_high": 4e-4},
    signals=(CRITIC,),
    critic_values=1,
)

# Turn-PPO (arXiv 2512.17008).
TURN_PPO = Algorithm(
    step_ppo,
    columns=("value",),
    settings={"lam": replace(LAM, default=0.9)},
    fixed=WHITENED | {"ratio": "product"},
    defaults=BY_TURN,
    signals=(CRITIC,),
    critic_values=1,
)
