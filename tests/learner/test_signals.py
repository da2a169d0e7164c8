"""The table of signals: what each algorithm gets, and that nothing is computed twice."""

import dataclasses
from collections.abc import Mapping

import jax
import numpy as np
import pytest
from ml_collections import ConfigDict

from gigpo_jax.config import default_config, resolve
from gigpo_jax.devices.mesh import make_mesh
from gigpo_jax.learner.packing import make_minibatches
from gigpo_jax.learner.samples import Sample
from gigpo_jax.learner.signals.action_spans import ActionSpans
from gigpo_jax.learner.signals.base import Signal
from gigpo_jax.learner.signals.critic import Critic
from gigpo_jax.learner.signals.policy_scores import PolicyScores
from gigpo_jax.learner.signals.saved import all_signals
from gigpo_jax.learner.signals.table import batch_fields, needed_signals, signal_bytes
from gigpo_jax.methods.ema_grpo.task_deviations import TaskDeviations
from gigpo_jax.methods.hcapo.episode_ends import EpisodeEnds
from gigpo_jax.methods.hiper.plan_critic import PlanCritic
from gigpo_jax.methods.hiper.plan_parts import PlanParts
from gigpo_jax.methods.igpo.clip_scales import ClipScales
from gigpo_jax.methods.igpo.known_answers import KnownAnswers
from gigpo_jax.methods.oprl.implicit_rewards import ImplicitRewards
from gigpo_jax.methods.rebel.belief_grades import BeliefGrades
from gigpo_jax.methods.rlvmr.tags import Tags
from gigpo_jax.methods.serl.teacher import HindsightTeacher
from gigpo_jax.methods.spa_rl.executable import ExecutableActions
from gigpo_jax.methods.strata.strategies import Strategies
from gigpo_jax.methods.text_critic.critic import TextCritic
from gigpo_jax.models.published import PUBLISHED
from gigpo_jax.policy import Policy, longest_text
from gigpo_jax.rl.algorithms import ALGORITHMS
from gigpo_jax.rl.types import COLUMNS_OF_STEPS, StepBatch, StepColumns


def signals_of(algorithm: str) -> list[type[Signal]]:
    config = default_config()
    config.rl.algorithm = algorithm
    own_settings = ALGORITHMS[algorithm].settings
    config.rl.settings = ConfigDict({name: own_settings[name].default for name in own_settings})
    if "teacher" in own_settings:
        config.rl.settings.teacher = "folder"
    config.critic.kind = "model" if ALGORITHMS[algorithm].critic_values else "none"
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
        ("oprl", [ImplicitRewards]),
        ("spa_rl", [Critic, ExecutableActions]),
        ("ppo", [Critic]),
        ("step_ppo", [Critic]),
        ("hiper", [PlanParts, PlanCritic]),
        ("rebel", [BeliefGrades]),
        ("serl", [HindsightTeacher, ActionSpans]),
        ("response_weight", [ActionSpans]),
        ("a2tgpo", [KnownAnswers, ClipScales]),
        ("strata", [Strategies]),
    ],
)
def test_an_algorithm_gets_the_signals_that_it_needs(
    algorithm: str, expected: list[type[Signal]]
) -> None:
    assert signals_of(algorithm) == expected


def test_every_column_of_every_algorithm_is_filled_once() -> None:
    for name, algorithm in ALGORITHMS.items():
        filled = [column for signal in signals_of(name) for column in signal.columns]
        assert len(filled) == len({*filled}), name
        assert {*algorithm.columns} <= {*filled, *COLUMNS_OF_STEPS}, name


def test_columns_and_fields_are_those_of_the_types() -> None:
    core = {field.name for field in dataclasses.fields(StepColumns)}
    for signal in all_signals():
        # A column of one method is declared with its type, one of the core is not.
        assert {*signal.columns} - core == (
            {*signal.columns} if isinstance(signal.columns, Mapping) else set()
        )
    fields = {field.name for field in dataclasses.fields(StepBatch)}
    assert batch_fields(all_signals()).keys() <= fields


def test_a_critic_of_its_own_has_parameters_gradients_and_moments_in_float32() -> None:
    config = default_config()
    config.rl.algorithm = "ppo"
    trunk = 1_543_714_304  # the embedding is tied: a value head comes on top, and nothing goes
    bytes_of_critic = {"critic": 16 * (trunk + 1536 + 1)}
    assert signal_bytes(resolve(config), PUBLISHED["1.5b"]) == bytes_of_critic
    untied = 7_615_616_512 - 152_064 * 3584
    bytes_of_critic = {"critic": 16 * (untied + 3584 + 1)}
    assert signal_bytes(resolve(config), PUBLISHED["7b"]) == bytes_of_critic
    config.critic.kind = "head"
    assert signal_bytes(resolve(config), PUBLISHED["1.5b"]) == {}


def test_a_teacher_is_a_copy_of_what_is_trained() -> None:
    config = default_config()
    assert signal_bytes(resolve(config), PUBLISHED["1.5b"]) == {}
    config.rl.algorithm = "serl"
    assert signal_bytes(resolve(config), PUBLISHED["1.5b"]) == {"teacher": 4 * 1_543_714_304}


def test_a_copy_that_learns_has_gradients_and_moments_of_what_is_trained() -> None:
    config = default_config()
    config.rl.algorithm = "oprl"
    assert signal_bytes(resolve(config), PUBLISHED["1.5b"]) == {"copy": 16 * 1_543_714_304}


def test_replayed_experts_of_an_iteration() -> None:
    config = default_config()
    shape = PUBLISHED["qwen3-30b-a3b"]
    assert signal_bytes(resolve(config), shape) == {}
    config.model.replay_routes = True
    train, sampling = config.train, config.sampling
    train.groups, train.group_size, train.epochs, config.env.max_steps = 3, 4, 2, 5
    train.minibatch = 60
    sampling.max_prompt_tokens, sampling.max_response_tokens = 96, 32
    config.batch.rows, config.batch.row_length = 4, 256
    # 2 epochs of 60 steps. A row of 256 tokens has room for two of 127, so 8 microbatches are
    # needed and 16 are stored; 8 experts in each of 48 layers.
    rows = 2 * 16 * 4
    assert signal_bytes(resolve(config), shape) == {"replayed experts": rows * 256 * 48 * 8}
    mesh = make_mesh(1, 1, 1, devices=jax.devices()[:1])
    (signal,) = needed_signals(resolve(config))
    array = signal.abstract_arrays(config, Policy(shape, None, None), mesh)["replayed experts"]
    assert (array.shape, array.dtype) == ((rows, 256, 384), np.uint8)

    # So many bytes has the minibatch of each epoch, however short its steps are.
    tokens, logprobs = np.zeros(3, np.int32), np.zeros(3, np.float32)
    sample = Sample(tokens, tokens, logprobs, routes=np.zeros((5, 384), np.uint8))
    (batch,) = make_minibatches(
        [sample] * 60,
        steps=60,
        row_length=256,
        rows=4,
        rng=np.random.default_rng(0),
        longest=longest_text(config) - 1,
    )
    assert 2 * batch.routes.nbytes == rows * 256 * 384
