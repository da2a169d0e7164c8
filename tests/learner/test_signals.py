"""The table of signals: what each algorithm gets, and that nothing is computed twice."""

import dataclasses

import pytest

from gigpo_jax.config import default_config
from gigpo_jax.learner.signals.action_spans import ActionSpans
from gigpo_jax.learner.signals.base import Signal
from gigpo_jax.learner.signals.clip_scales import ClipScales
from gigpo_jax.learner.signals.critic import Critic
from gigpo_jax.learner.signals.episode_ends import EpisodeEnds
from gigpo_jax.learner.signals.known_answers import KnownAnswers
from gigpo_jax.learner.signals.policy_scores import PolicyScores
from gigpo_jax.learner.signals.table import SIGNALS, batch_fields, needed_signals
from gigpo_jax.learner.signals.tags import Tags
from gigpo_jax.learner.signals.task_deviations import TaskDeviations
from gigpo_jax.learner.signals.teacher import Teacher
from gigpo_jax.learner.signals.text_critic import TextCritic
from gigpo_jax.rl.algorithms import ALGORITHMS
from gigpo_jax.rl.types import OPTIONAL_COLUMNS, OPTIONAL_FIELDS, StepBatch

# Needs that no signal fills under their name.
FROM_STEPS = {
    "action",
    "next_anchor",
    "won",
    "truncated",
    "history",
    "text_critic",
    "frozen_teacher",
}


def signals_of(algorithm: str) -> list[type[Signal]]:
    config = default_config()
    config.rl.algorithm = algorithm
    config.critic.kind = "model" if ALGORITHMS[algorithm].needs_critic else "none"
    return needed_signals(config)


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        ("gigpo", []),
        ("salt", []),
        ("empg", [PolicyScores]),
        ("rlvmr", [Tags]),
        ("text_critic", [TextCritic]),
        ("igpo", [KnownAnswers]),
        ("hcapo", [EpisodeEnds]),
        ("ema_grpo", [TaskDeviations]),
        ("ppo", [Critic]),
        ("step_ppo", [Critic]),
        ("serl", [Teacher, ActionSpans]),
        ("response_weight", [ActionSpans]),
        ("a2tgpo", [KnownAnswers, ClipScales]),
    ],
)
def test_an_algorithm_gets_the_signals_that_it_needs(
    algorithm: str, expected: list[type[Signal]]
) -> None:
    assert signals_of(algorithm) == expected


def test_every_need_of_every_algorithm_is_filled_once() -> None:
    for name, algorithm in ALGORITHMS.items():
        filled = [
            need
            for signal in signals_of(name)
            for need in (*signal.columns, *signal.batch_fields)
            if need in algorithm.needs
        ]
        assert sorted(filled) == sorted({*algorithm.needs} - FROM_STEPS), name


def test_columns_and_fields_are_those_of_the_types() -> None:
    columns = {column for signal in SIGNALS for column in signal.columns}
    assert columns <= {*OPTIONAL_COLUMNS}
    fields = {field.name for field in dataclasses.fields(StepBatch)}
    assert batch_fields(SIGNALS).keys() <= fields
    assert batch_fields(SIGNALS).keys() >= {*OPTIONAL_FIELDS}
