"""ReBel (arXiv 2605.20061): stated beliefs are graded, and steps with one belief are compared."""

from gigpo_jax.methods.rebel.advantages import rebel
from gigpo_jax.rl.algorithm_types import Algorithm

# ReBel (arXiv 2605.20061), with the values of its ALFWorld script.
METHOD = Algorithm(
    rebel,
    columns=(
        "belief",
        "belief_grade",
        "task_type",
    ),
    fixed={"normalize": "mean"},
    defaults={"step_weight": 0.5, "clip_low": 0.2, "clip_high": 0.28},
    signals=("gigpo_jax.methods.rebel.belief_grades:BeliefGrades",),
)
