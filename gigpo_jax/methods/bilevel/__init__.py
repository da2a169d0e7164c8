"""GAE over steps and then over the tokens of each response (RAGEN, arXiv 2504.20073, and VAGEN)."""

from gigpo_jax.methods.bilevel.advantages import bilevel
from gigpo_jax.rl.algorithm_types import Algorithm
from gigpo_jax.rl.shared_settings import CRITIC, LAM, PER_TOKEN, WHITENED

# RAGEN (arXiv 2504.20073) and VAGEN, whose scripts have gamma 0.95 from step to step and 1 from
# token to token.
METHOD = Algorithm(
    bilevel,
    columns=PER_TOKEN,
    settings={"lam": LAM},
    fixed=WHITENED,
    defaults={"gamma": 0.95},
    signals=(CRITIC,),
    critic_values=1,
    gives_tokens=True,
)
