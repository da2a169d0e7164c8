"""`model.replay_routes`: updates send each token through the experts of its rollout."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from ml_collections import ConfigDict

from gigpo_jax.config import resolve
from gigpo_jax.core.errors import InputError
from gigpo_jax.devices.mesh import make_mesh
from gigpo_jax.learner.learner import Learner
from gigpo_jax.learner.packing import make_minibatches
from gigpo_jax.learner.samples import Sample
from gigpo_jax.models import decoder, next_tokens
from gigpo_jax.models.decoder_config import DecoderConfig
from gigpo_jax.models.expert_config import ExpertConfig
from gigpo_jax.models.routes import chosen_experts
from gigpo_jax.policy import Policy, check_shape, forward_function
from gigpo_jax.rl.imitation_update import make_sft_update
from gigpo_jax.rl.optimizer import Optimizer
from gigpo_jax.rl.train_step import init_state
from gigpo_jax.trajectory import Trajectory, finished_steps
from tests.learner.test_learner_updates import learn_steps, make_config, make_trajectories
from tests.models.shapes import random_params

pytestmark = pytest.mark.slow

COUNT = 32
# One expert a token: most of the experts have no token at all.
SHAPE = DecoderConfig(
    31, 16, 32, 2, 2, 1, 8, model_type="qwen3_moe", experts=ExpertConfig(COUNT, 1, 8)
)
PARAMS = random_params(SHAPE)
# The perturbed policy.
OTHER = jax.tree.map(lambda one, two: one + 0.3 * two, PARAMS, random_params(SHAPE, 1))


def replay_config() -> ConfigDict:
    config = make_config()
    config.rl.kl_coef = 0.0
    config.optim.weight_decay = 0.0
    config.train.epochs = 1
    return config


@jax.jit
def score(params: decoder.Params, tokens: jax.Array) -> tuple[jax.Array, jax.Array]:
    scores = next_tokens.logits(SHAPE, params, tokens) / 0.7
    return jax.nn.log_softmax(scores)[0], chosen_experts(SHAPE, params, tokens)[0]


def play(params: decoder.Params) -> list[Trajectory]:
    """Turns with the experts and log-probabilities of a policy."""
    episodes = make_trajectories()
    for episode in episodes:
        for index, turn in enumerate(episode.turns):
            sequence = np.concatenate([turn.prompt_tokens, turn.response_tokens])[None]
            logprobs, routes = map(np.asarray, score(params, sequence[:, :-1]))
            drawn = logprobs[np.arange(3, 6), turn.response_tokens]
            routes = routes.astype(np.uint8)
            episode.turns[index] = replace(turn, logprobs=drawn, routes=routes)
    return episodes


def without_routes(episodes: list[Trajectory]) -> list[Trajectory]:
    turns = [[replace(turn, routes=None) for turn in episode.turns] for episode in episodes]
    return [replace(episode, turns=each) for episode, each in zip(episodes, turns, strict=True)]


def learn(params: decoder.Params, episodes: list[Trajectory]) -> tuple[dict, list[set[int]]]:
    """One iteration; returns its metrics, and the experts of each layer that it changed."""
    mesh = make_mesh(data=1, fsdp=1, tensor=1)
    copy = jax.tree.map(jnp.copy, params)
    learner = Learner(resolve(replay_config()), Policy(SHAPE, copy, None), mesh)  # type: ignore[arg-type]
    metrics, _ = learn_steps(learner, finished_steps(episodes), 0)
    before = params["layers"]["expert_up"]["kernel"]
    after = learner.state.params["layers"]["expert_up"]["kernel"]
    moved = np.abs(np.asarray(after - before)).max((2, 3)) > 0
    return metrics, [set(np.flatnonzero(layer).tolist()) for layer in moved]


def used_experts(episodes: list[Trajectory]) -> list[set[int]]:
    """Experts of each layer that tokens went through in steps that are learnt from."""
    routes = np.concatenate([turn.routes for episode in episodes for turn in episode.turns])
    return [set(routes[:, layer].tolist()) for layer in range(SHAPE.num_layers)]


def test_the_experts_of_the_rollout_are_those_of_the_update() -> None:
    """In the last layer tokens that predict nothing have no gradient: a subset of its experts."""
    episodes = play(PARAMS)
    used = used_experts(episodes)
    assert max(map(len, used)) < COUNT
    _, changed = learn(OTHER, episodes)
    assert changed[0] == used[0]
    assert changed[1] <= used[1]
    _, changed = learn(OTHER, without_routes(episodes))
    assert not changed[0] <= used[0]
    assert not changed[1] <= used[1]


def test_the_mismatch_shows_what_other_experts_cost() -> None:
    """The rollout's experts are not those that the policy would choose now."""
    episodes = play(PARAMS)
    exact, _ = learn(PARAMS, episodes)
    assert exact["policy/behaviour_mismatch"] < 1e-5
    plain, _ = learn(PARAMS, without_routes(episodes))
    assert plain["policy/behaviour_mismatch"] < 1e-5
    router = PARAMS["layers"]["router"]["kernel"]
    moved = PARAMS | {"layers": PARAMS["layers"] | {"router": {"kernel": -router}}}
    # The gate of one normalized expert is 1: only the choice of experts has changed.
    replayed, _ = learn(moved, episodes)
    assert replayed["policy/behaviour_mismatch"] < 1e-5
    free, _ = learn(moved, without_routes(episodes))
    assert free["policy/behaviour_mismatch"] > 0.01


def test_gradients_of_layers_of_both_kinds_add_up_over_microbatches() -> None:
    """The update sums gradients of stacked layers in place, also of stacks that it slices."""
    shape = replace(SHAPE, num_layers=3, experts=ExpertConfig(4, 2, 8, dense_layers=(1,)))
    params = random_params(shape)
    rng = np.random.default_rng(3)
    tokens = rng.integers(0, 31, (6, 9)).astype(np.int32)
    samples = [Sample(row[:6], row[6:], np.zeros(3, np.float32)) for row in tokens]

    def loss(params: decoder.Params) -> jax.Array:
        logprobs = jax.nn.log_softmax(next_tokens.logits(shape, params, tokens[:, :-1])[:, 5:])
        return -jnp.take_along_axis(logprobs, tokens[:, 6:, None], axis=-1).mean()

    expected = jax.jit(jax.grad(loss))(params)
    # A step of 1 along the gradient itself.
    optimizer = Optimizer(optax.identity(), optax.constant_schedule(1.0))
    forward = forward_function(replay_config(), shape, make_mesh(data=1, fsdp=1, tensor=1))
    (batch,) = make_minibatches(samples, steps=6, row_length=16, rows=2, rng=rng)
    assert batch.microbatches > 1
    state = init_state(jax.tree.map(jnp.copy, params), optimizer)
    state, _ = make_sft_update(forward, optimizer)(state, batch)
    found = jax.tree.map(lambda old, new: old - new, params, state.params)
    for one, other in zip(*map(jax.tree.leaves, (expected, found)), strict=True):
        np.testing.assert_allclose(other, one, atol=2e-5)


def test_experts_stand_beside_their_tokens() -> None:
    rng = np.random.default_rng(0)
    samples = []
    for length in (5, 3, 7):
        tokens = rng.integers(1, 31, length + 2).astype(np.int32)
        # An expert has the number of the token.
        routes = np.stack([tokens[:-1], tokens[:-1] + 100], axis=1).astype(np.uint16)
        samples.append(
            Sample(tokens[:length], tokens[length:], np.ones(2, np.float32), 1.0, routes=routes)
        )
    (batch,) = make_minibatches(samples, steps=3, row_length=16, rows=1, rng=rng)
    assert batch.routes.dtype == np.uint16
    real = batch.segment_ids > 0
    assert real.sum() == 18
    np.testing.assert_array_equal(
        batch.routes[real], np.stack([batch.tokens, batch.tokens + 100], -1)[real]
    )
    plain = [replace(sample, routes=None) for sample in samples]
    assert make_minibatches(plain, steps=3, row_length=16, rows=1, rng=rng)[0].routes is None


def test_a_token_keeps_the_experts_of_its_first_reading() -> None:
    logprobs = np.zeros(2, np.float32)
    tokens = np.arange(1, 9, dtype=np.int32)
    first = Sample(tokens[:3], tokens[3:5], logprobs, 1.0, routes=np.full((4, 2), 7, np.uint8))
    second = Sample(tokens[:6], tokens[6:8], logprobs, 1.0, routes=np.full((7, 2), 9, np.uint8))
    (batch,) = make_minibatches(
        [first, second], steps=2, row_length=16, rows=1, rng=np.random.default_rng(0)
    )
    assert batch.segment_ids.max() == 1
    assert batch.routes[0, 0, :7, 0].tolist() == [7] * 4 + [9] * 3


def test_what_a_model_does_not_take_is_refused() -> None:
    config = make_config()
    config.model.path = "given"
    config.model.replay_routes = True
    check_shape(config, SHAPE)
    dense = replace(SHAPE, model_type="qwen3", experts=None)
    with pytest.raises(InputError, match=r"model\.replay_routes=True: the model has no experts"):
        check_shape(config, dense)
    config.engine.name = "vllm"
    with pytest.raises(
        InputError, match=r"model\.replay_routes=True: servers do not return the experts"
    ):
        resolve(config)
    config.model.lora.rank = 4
    message = r"targets=.*: experts have no adapters \(gate_proj, up_proj, down_proj\)"
    with pytest.raises(InputError, match=message):
        check_shape(config, SHAPE)
    config.model.lora.targets = ("q_proj", "o_proj")
    check_shape(config, SHAPE)
    mixed = replace(SHAPE, experts=replace(SHAPE.experts, dense_layers=(0,)))
    with pytest.raises(InputError, match=r"rank=4: adapters need experts in all layers or in none"):
        check_shape(config, mixed)
