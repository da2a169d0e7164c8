"""SLEA-RL (arXiv 2603.18079): GiGPO with similar states and a library of lessons."""

from gigpo_jax.rl.algorithm_types import Algorithm

# SLEA-RL (arXiv 2603.18079): GiGPO with similar states, and a library (docs/experience.md).
METHOD = Algorithm(
    fixed={"anchor_match": "similar"},
    defaults={"similarity": 0.85},
    changes="prompts",
    is_graded=False,
    check="gigpo_jax.methods.slea.keys:check_library",
)
