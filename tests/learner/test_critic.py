"""A critic beside a policy: its values, updates, checkpoints, export and refusals."""

import dataclasses
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict

from gigpo_jax.config import resolve
from gigpo_jax.core.errors import InputError
from gigpo_jax.devices.mesh import make_mesh
from gigpo_jax.learner import critic_model
from gigpo_jax.learner.learner import Learner
from gigpo_jax.learner.samples import step_samples
from gigpo_jax.learner.signals.critic import Critic
from gigpo_jax.models import decoder, lora
from gigpo_jax.models.files.save_weights import save_hf
from gigpo_jax.models.files.weights import load_hf
from gigpo_jax.models.value_head import predict_values
from gigpo_jax.policy import Policy, lora_config
from gigpo_jax.run.checkpoint import Checkpointer
from gigpo_jax.trajectory import Trajectory, finished_steps
from tests.learner.test_learner_updates import (
    SHAPE,
    find_signal,
    learn_steps,
    make_config,
    make_trajectories,
    start,
)
from tests.models.shapes import random_params

MESH = make_mesh(data=1, fsdp=1, tensor=1)
Tree = dict


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a tiny model."""
    folder = tmp_path_factory.mktemp("critic") / "model"
    save_hf(folder, SHAPE, start())
    return str(folder)


def config_of(model: str, algorithm: str, kind: str, **changes: object) -> ConfigDict:
    config = make_config()
    config.rl.algorithm, config.critic.kind, config.model.path = algorithm, kind, model
    config.rl.old_logprobs, config.rl.kl_coef, config.train.epochs = "recompute", 0.0, 1
    config.critic.lr, config.critic.clip = 3e-2, 0.0
    config.critic.update(changes)
    return resolve(config)


def learner_of(config: ConfigDict) -> Learner:
    shape, params = load_hf(config.model.path)
    adapter = lora_config(config)
    pairs = None if adapter is None else lora.init_adapter(shape, adapter, jax.random.key(1))
    return Learner(config, Policy(shape, params, None, pairs, 1.0), MESH)  # type: ignore[arg-type]


def learn(
    learner: Learner, iterations: range, trajectories: list[Trajectory]
) -> list[dict[str, float]]:
    steps = finished_steps(trajectories)
    return [learn_steps(learner, steps, iteration)[0] for iteration in iterations]


def host(tree: object) -> object:
    return jax.tree.map(lambda x: np.array(x), tree)


def equal_trees(first: object, second: object) -> bool:
    return all(
        np.array_equal(x, y) for x, y in zip(*map(jax.tree.leaves, (first, second)), strict=True)
    )


@pytest.mark.parametrize(
    ("algorithm", "kind"),
    [("ppo", "model"), pytest.param("step_ppo", "head", marks=pytest.mark.slow)],
)
def test_the_critic_learns_what_the_returns_are(model: str, algorithm: str, kind: str) -> None:
    """On the same episodes again and again; the policy stands still, so that the targets do."""
    config = config_of(model, algorithm, kind)
    config.unlock().optim.lr = 1e-12
    config.train.iterations = 12
    records = learn(learner_of(config), range(12), make_trajectories())
    assert records[0]["critic/explained_variance"] == records[0]["critic/value_mean"] == 0.0
    assert records[-1]["critic/explained_variance"] > 0.5
    assert records[-1]["critic/loss"] < 0.5 * records[0]["critic/loss"]
    assert records[0]["critic/lr"] == pytest.approx(3e-2)
    assert all(record["critic/skipped"] == 0.0 < record["critic/grad_norm"] for record in records)


@pytest.mark.slow
def test_progress_of_spa_rl_adds_up_to_the_outcome(model: str) -> None:
    """The critic reads before the last token of each response, and its sums become the returns."""
    config = config_of(model, "spa_rl", "model", lr=1e-2)
    config.unlock().optim.lr = 1e-12
    config.train.iterations = 16
    config.train.minibatch = 12  # one minibatch
    learner = learner_of(config)
    records = learn(learner, range(16), make_trajectories())
    assert records[-1]["critic/loss"] < 0.3 * records[0]["critic/loss"]
    steps = finished_steps(make_trajectories())
    scored = learner.score_steps(steps)
    columns = find_signal(learner, Critic).compute_columns(scored)
    last = columns["token_value"][np.arange(len(steps)), columns["tokens"] - 1]
    sums = np.bincount([step.trajectory for step in steps], last)
    np.testing.assert_allclose(sums, [0.0, 1.0, 0.0, 1.0], atol=0.3)


@pytest.mark.slow
def test_each_part_trains_itself_alone(model: str) -> None:
    """A value head moves no other parameter, and none at all learns with the other's rate."""
    for kind in ("model", "head"):
        learner = learner_of(config_of(model, "step_ppo", kind, warmup_iterations=1))
        start_params = host(learner.state.params)
        values = host(find_signal(learner, Critic).state.params)
        assert ("layers" in values) == (kind == "model")
        (first,) = learn(learner, range(1), make_trajectories())
        assert equal_trees(learner.state.params, start_params)  # the warm-up
        assert not equal_trees(find_signal(learner, Critic).state.params, values)
        assert not any(name.startswith("policy/") for name in first)
        (second,) = learn(learner, range(1, 2), make_trajectories())
        assert not equal_trees(learner.state.params, start_params)
        assert second["policy/grad_norm"] > 0


@pytest.mark.parametrize("kind", ["model", "head"])
def test_values_of_packed_samples_are_those_of_each_by_itself(model: str, kind: str) -> None:
    learner = learner_of(config_of(model, "ppo", kind))
    shape = dataclasses.replace(SHAPE, value_head=True)
    params = random_params(shape, 3)
    critic = find_signal(learner, Critic)
    critic.state = dataclasses.replace(
        critic.state,
        params=params if kind == "model" else {"value_head": params["value_head"]},
    )
    trunk = params if kind == "model" else start()
    samples = step_samples(finished_steps(make_trajectories()))
    all_values = critic.values((learner.state.params, None), samples)
    assert len(all_values) == len(samples)
    for sample, values in zip(samples, all_values, strict=True):
        tokens = np.concatenate([sample.prompt_tokens, sample.response_tokens])[None, :-1]
        hidden = decoder.hidden_states(shape, trunk, jnp.asarray(tokens))[
            0, len(sample.prompt_tokens) - 1 :
        ]
        np.testing.assert_allclose(values, predict_values(params, hidden), atol=1e-5)


@pytest.mark.slow
def test_stopped_and_resumed_equals_uninterrupted(model: str, tmp_path: Path) -> None:
    config = config_of(model, "bilevel", "model")
    trajectories = make_trajectories()
    whole = learner_of(config)
    expected = learn(whole, range(2), trajectories)
    stopped = learner_of(config)
    assert learn(stopped, range(1), trajectories) == expected[:1]
    checkpoints = Checkpointer(tmp_path)
    checkpoints.save_parts(1, stopped.checkpoint_parts(), {})
    resumed = learner_of(config)
    resumed.restore(checkpoints.restore_parts(resumed.checkpoint_parts()))
    checkpoints.close()
    assert learn(resumed, range(1, 2), trajectories) == expected[1:]
    assert equal_trees(resumed.checkpoint_parts(), whole.checkpoint_parts())


@pytest.mark.slow
def test_an_adapter_can_have_either_critic(model: str) -> None:
    for kind in ("model", "head"):
        config = config_of(model, "step_ppo", kind).unlock()
        config.model.lora.rank, config.model.lora.targets = 2, ("q_proj", "down_proj")
        learner = learner_of(resolve(config))
        assert ("layers" in find_signal(learner, Critic).state.params) == (kind == "model")
        first, second = learn(learner, range(2), make_trajectories())
        assert first["critic/value_mean"] == 0.0 != second["critic/value_mean"]
        assert second["policy/grad_norm"] > 0


@pytest.mark.slow
def test_an_exported_critic_is_where_the_next_run_starts(model: str, tmp_path: Path) -> None:
    for kind in ("model", "head"):
        config = config_of(model, "step_ppo", kind)
        learner = learner_of(config)
        learn(learner, range(1), make_trajectories())
        policy = Policy(SHAPE, learner.state.params, None)  # type: ignore[arg-type]
        trained = find_signal(learner, Critic).state.params
        critic_model.save_critic(tmp_path / kind, config, policy, learner.state.params, trained)
        assert json.loads((tmp_path / kind / "config.json").read_text())["num_labels"] == 1
        again = config_of(model, "step_ppo", "model", path=str(tmp_path / kind))
        loaded = critic_model.start_params(again, policy, MESH)
        expected = trained if kind == "model" else learner.state.params | trained
        assert equal_trees(loaded, {name: expected[name] for name in loaded})
        assert np.any(np.asarray(loaded["value_head"]["kernel"]))


def test_a_critic_of_another_vocabulary_is_refused(model: str, tmp_path: Path) -> None:
    larger = dataclasses.replace(SHAPE, vocab_size=40)
    save_hf(tmp_path / "other", larger, decoder.init_params(larger, jax.random.key(0)))
    for path, message in (
        (tmp_path / "other", "has 40 tokens, the policy 31"),
        (tmp_path / "none", "no such"),
    ):
        config = config_of(model, "ppo", "model", path=str(path))
        with pytest.raises(InputError, match=rf"^config\.critic\.path=.*: {message}.*; "):
            learner_of(config)
