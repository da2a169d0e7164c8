"""GRPO, and GRPO with other losses: they differ from GiGPO in settings alone."""

import math

from gigpo_jax.rl.algorithm_types import NO_STEP, ONE_EACH, Algorithm

GRPO = Algorithm(fixed=NO_STEP, takes_forks=True)

# Dr. GRPO (arXiv 2503.20783): no division by the standard deviation, nor by the length of
# responses.
DR_GRPO = Algorithm(
    fixed=NO_STEP | {"normalize": "mean"}, defaults={"loss_mean": "constant"}, takes_forks=True
)

# DAPO (arXiv 2503.14476): a higher upper clip, no KL term.
DAPO = Algorithm(
    fixed=NO_STEP,
    defaults={"clip_low": 0.2, "clip_high": 0.28, "kl_coef": 0.0},
    takes_forks=True,
)

# GSPO (arXiv 2507.18071, eq. 5): the ratio of whole responses is closer to 1, and so are its
# clips.
GSPO = Algorithm(
    fixed=NO_STEP | {"ratio": "sequence"},
    defaults=ONE_EACH | {"clip_low": 3e-4, "clip_high": 4e-4},
    takes_forks=True,
)

# GMPO (arXiv 2507.20673): the clip is that of the paper, from exp(-0.4) to exp(0.4).
GMPO = Algorithm(
    fixed=NO_STEP | {"ratio": "hoelder_tokens", "hoelder_first": 0.0, "hoelder_last": 0.0},
    defaults=ONE_EACH | {"clip_low": 1 - math.exp(-0.4), "clip_high": math.exp(0.4) - 1},
    takes_forks=True,
)

# HölderPO (arXiv 2605.12058): p falls from 1 to -1.
HOELDER = Algorithm(fixed=NO_STEP | {"ratio": "hoelder"}, defaults=ONE_EACH, takes_forks=True)
