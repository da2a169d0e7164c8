"""A critic beside a policy: what it reads, what its updates change, how it is resumed, exported and refused."""

import dataclasses
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict

from gigpo_jax.batching import step_samples
from gigpo_jax.columns import critic
from gigpo_jax.config import resolve
from gigpo_jax.errors import InputError
from gigpo_jax.learner import Learner
from gigpo_jax.models import lora, qwen2
from gigpo_jax.models.weights import load_hf, save_hf
from gigpo_jax.policy import Policy, lora_config
from gigpo_jax.run import partition
from gigpo_jax.run.checkpoint import Checkpointer
from gigpo_jax.run.metrics import Timers
from gigpo_jax.trajectory import Trajectory, finished_steps
from tests.models.shapes import random_params
from tests.test_learner_updates import SHAPE, make_config, make_trajectories, no_progress, start

MESH = partition.make_mesh(data=1, fsdp=1, tensor=1)
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
    pairs = None if adapter is None else lora.init(shape, adapter, jax.random.key(1))
    return Learner(config, Policy(shape, params, None, pairs, 1.0), MESH)  # type: ignore[arg-type]


def learn(learner: Learner, iterations: range, trajectories: list[Trajectory]) -> list[dict[str, float]]:
    steps = finished_steps(trajectories)
    return [learner.learn(steps, iteration, Timers(), no_progress)[0] for iteration in iterations]


def host(tree: object) -> object:
    return jax.tree.map(lambda x: np.array(x), tree)


def same(one: object, two: object) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(*map(jax.tree.leaves, (one, two)), strict=True))


@pytest.mark.parametrize(("algorithm", "kind"), [("ppo", "model"), ("step_ppo", "head")])
def test_the_critic_learns_what_the_returns_are(model: str, algorithm: str, kind: str) -> None:
    """On the same episodes again and again; the policy stands still, so that the targets do."""
    config = config_of(model, algorithm, kind)
    config.unlock().optim.lr = 1e-12
    found = learn(learner_of(config), range(12), make_trajectories())
    assert found[0]["critic/explained_variance"] == found[0]["critic/value_mean"] == 0.0
    assert found[-1]["critic/explained_variance"] > 0.5
    assert found[-1]["critic/loss"] < 0.5 * found[0]["critic/loss"]
    assert found[0]["critic/lr"] == pytest.approx(3e-2)
    assert all(record["critic/skipped"] == 0.0 < record["critic/grad_norm"] for record in found)


def test_each_part_trains_itself_alone(model: str) -> None:
    """A value head moves no other parameter, and none at all learns with the other's rate."""
    for kind in ("model", "head"):
        learner = learner_of(config_of(model, "step_ppo", kind, warmup_iterations=1))
        before, values = host(learner.state.params), host(learner._critic.state.params)
        assert ("layers" in values) == (kind == "model")
        (first,) = learn(learner, range(1), make_trajectories())
        assert same(learner.state.params, before)  # the warm-up
        assert not same(learner._critic.state.params, values)
        assert not any(name.startswith("policy/") for name in first)
        (second,) = learn(learner, range(1, 2), make_trajectories())
        assert not same(learner.state.params, before)
        assert second["policy/grad_norm"] > 0


@pytest.mark.parametrize("kind", ["model", "head"])
def test_values_of_packed_samples_are_those_of_each_by_itself(model: str, kind: str) -> None:
    learner = learner_of(config_of(model, "ppo", kind))
    shape = dataclasses.replace(SHAPE, value_head=True)
    params = random_params(shape, 3)
    learner._critic.state = dataclasses.replace(
        learner._critic.state, params=params if kind == "model" else {"value_head": params["value_head"]}
    )
    trunk = params if kind == "model" else start()
    samples = step_samples(finished_steps(make_trajectories()))
    found = learner._critic.values((learner.state.params, None), samples)
    assert len(found) == len(samples)
    for sample, values in zip(samples, found, strict=True):
        tokens = np.concatenate([sample.prompt_tokens, sample.response_tokens])[None, :-1]
        hidden = qwen2.hidden_states(shape, trunk, jnp.asarray(tokens))[0, len(sample.prompt_tokens) - 1 :]
        np.testing.assert_allclose(values, qwen2.values(params, hidden), atol=1e-5)


def test_stopped_and_resumed_equals_uninterrupted(model: str, tmp_path: Path) -> None:
    config, trajectories = config_of(model, "bilevel", "model"), make_trajectories()
    whole = learner_of(config)
    expected = learn(whole, range(2), trajectories)
    stopped = learner_of(config)
    assert learn(stopped, range(1), trajectories) == expected[:1]
    checkpoints = Checkpointer(tmp_path)
    checkpoints.save_parts(1, stopped.parts, {})
    resumed = learner_of(config)
    resumed.restore(checkpoints.restore_parts(resumed.parts))
    checkpoints.close()
    assert learn(resumed, range(1, 2), trajectories) == expected[1:]
    assert same(resumed.parts, whole.parts)


def test_an_adapter_can_have_either_critic(model: str) -> None:
    for kind in ("model", "head"):
        config = config_of(model, "step_ppo", kind).unlock()
        config.model.lora.rank, config.model.lora.targets = 2, ("q_proj", "down_proj")
        learner = learner_of(resolve(config))
        assert ("layers" in learner._critic.state.params) == (kind == "model")
        first, second = learn(learner, range(2), make_trajectories())
        assert first["critic/value_mean"] == 0.0 != second["critic/value_mean"]
        assert second["policy/grad_norm"] > 0


def test_an_exported_critic_is_where_the_next_run_starts(model: str, tmp_path: Path) -> None:
    for kind in ("model", "head"):
        config = config_of(model, "step_ppo", kind)
        learner = learner_of(config)
        learn(learner, range(1), make_trajectories())
        policy = Policy(SHAPE, learner.state.params, None)  # type: ignore[arg-type]
        trained = learner._critic.state.params
        critic.save_critic(tmp_path / kind, config, policy, learner.state.params, trained)
        assert json.loads((tmp_path / kind / "config.json").read_text())["num_labels"] == 1
        again = config_of(model, "step_ppo", "model", path=str(tmp_path / kind))
        loaded = critic.start_params(again, policy, MESH)
        expected = trained if kind == "model" else learner.state.params | trained
        assert same(loaded, {name: expected[name] for name in loaded})
        assert np.any(np.asarray(loaded["value_head"]["kernel"]))


def test_a_critic_of_another_vocabulary_is_refused(model: str, tmp_path: Path) -> None:
    other = dataclasses.replace(SHAPE, vocab_size=40)
    save_hf(tmp_path / "other", other, qwen2.init(other, jax.random.key(0)))
    for path, message in ((tmp_path / "other", "has 40 tokens, the policy 31"), (tmp_path / "none", "no such")):
        config = config_of(model, "ppo", "model", path=str(path))
        with pytest.raises(InputError, match=rf"^config\.critic\.path=.*: {message}.*; "):
            learner_of(config)
