"""IGPO (arXiv 2510.14967) and A2TGPO (arXiv 2605.06200): turns earn information."""

from gigpo_jax.methods.igpo.advantages import a2tgpo, igpo
from gigpo_jax.rl.algorithm_types import ONE_EACH, Algorithm
from gigpo_jax.rl.shared_settings import GAINS

ANSWERS = "gigpo_jax.methods.igpo.known_answers:KnownAnswers"

# gamma 1 is the published setting.
METHOD = Algorithm(
    advantages=igpo,
    signals=(ANSWERS,),
    columns=("answer_logprob",),
    fixed=GAINS,
    defaults={"gamma": 1.0},
)

A2TGPO = Algorithm(
    advantages=a2tgpo,
    signals=(ANSWERS, "gigpo_jax.methods.igpo.clip_scales:ClipScales"),
    changes="clips",
    columns=("answer_logprob",),
    # The clips and the missing KL term are from a copy of its code.
    fixed=GAINS | {"ratio": "sequence"},
    defaults=ONE_EACH | {"gamma": 1.0, "clip_low": 3e-3, "clip_high": 4e-3, "kl_coef": 0.0},
)
