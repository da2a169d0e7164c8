"""The algorithm outside the package: its numbers, and that config, learner and errors treat it as
one of ours.
"""

import numpy as np
import pytest

from gigpo_jax.config import resolve
from gigpo_jax.config.command_line import load_config
from gigpo_jax.core.errors import InputError
from gigpo_jax.learner.objective import make_objective
from gigpo_jax.rl.algorithms import make_advantages
from gigpo_jax.rl.types import StepColumns, collect_columns
from tests.rl.test_advantages import columns

NAME = "examples.rare_actions:RARE_ACTIONS"


def loaded(*words: str):
    return resolve(load_config("configs/quickstart.py", [f"--config.rl.{word}" for word in words]))


def four_steps() -> StepColumns:
    """One task, three episodes; the first steps of all are in one state, two of them take the same
    action.
    """
    rows = columns([0, 3, 0, 6], [0] * 4, [0, 0, 1, 2], [0, 1, 0, 0], [0] * 4, [1, 2, 1, 1])
    return collect_columns(**rows, action=np.array([[5, 5], [5, 5], [5, 5], [6, 6]], np.uint32))


def test_numbers_by_hand() -> None:
    config = loaded(f"algorithm={NAME}", "settings.bonus=0.5", "normalize=mean", "preset=paper")
    assert config.rl.settings.to_dict() == {"bonus": 0.5}
    assert config.rl.step_weight == 0.0
    # Returns 3, 0, 6 with mean 3; counts of (state, action): 2, 1, 2, 1.
    want = np.array([0, 0, -3, 3]) + 0.5 / np.sqrt([2, 1, 2, 1])
    np.testing.assert_allclose(make_objective(config)[0](four_steps()).total, want, rtol=1e-6)


def test_without_a_bonus_it_is_grpo() -> None:
    options = {"gamma": 0.9, "step_weight": 1.0, "normalize": "mean_std"}
    advantages = make_advantages(NAME, "verl_agent", **options, bonus=0.0)(four_steps())
    np.testing.assert_array_equal(
        advantages.total, make_advantages("grpo", "verl_agent", **options)(four_steps()).total
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            [f"algorithm={NAME}", "settings.bonos=1"],
            "config.rl.settings.bonos: no such key of the algorithm examples",
        ),
        (
            [f"algorithm={NAME}", "settings.bonus=-1"],
            "config.rl.settings.bonus=-1.0: must be 0 or greater",
        ),
        (
            [f"algorithm={NAME}", "settings.bonus=x"],
            "config.rl.settings.bonus='x': must be of type float",
        ),
        (
            [f"algorithm={NAME}", "step_weight=1"],
            "config.rl.step_weight=1.0: examples.rare_actions:RARE_ACTIONS always",
        ),
        (["settings.bonus=1"], "config.rl.settings.bonus: no such key of the algorithm gigpo"),
        (
            ["algorithm=examples.rare_actions:RARE"],
            "config.rl.algorithm: cannot load examples.rare_actions:RARE",
        ),
        (
            ["algorithm=examples.rare_actions:jnp"],
            "config.rl.algorithm='examples.rare_actions:jnp': that is of type module",
        ),
        (
            ["algorithm=gipgo"],
            "config.rl.algorithm='gipgo': unknown; did you mean 'gigpo'? known are gigpo, grpo",
        ),
    ],
)
def test_mistakes_are_named_before_a_run(words: list[str], message: str) -> None:
    with pytest.raises(InputError) as error:
        loaded(*words)
    assert str(error.value).startswith(message)
