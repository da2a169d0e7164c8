"""ReBel (arXiv 2605.20061): stated beliefs are graded, and steps with one belief are compared."""

from gigpo_jax.core.settings import NOT_NEGATIVE, Setting
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
    settings={
        "state": Setting(0.4, "weight of what a belief says of the world", NOT_NEGATIVE),
        "phase": Setting(0.3, "weight of the phase of the task", NOT_NEGATIVE),
        "prediction": Setting(0.2, "weight of the predicted observation", NOT_NEGATIVE),
        "format": Setting(0.1, "weight of the format of the response", NOT_NEGATIVE),
    },
    fixed={"normalize": "mean"},
    defaults={"step_weight": 0.5, "clip_low": 0.2, "clip_high": 0.28},
    signals=("gigpo_jax.methods.rebel.belief_grades:BeliefGrades",),
)
