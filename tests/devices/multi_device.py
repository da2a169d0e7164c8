"""Programs that tests/devices/test_mesh.py starts in processes of their own: `multi_device.py
mesh|host ARGS...`.

They need several devices or several processes, which must be asked for before jax starts.
"""

import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from gigpo_jax.config import default_config
from gigpo_jax.devices.exchange import all_hosts, all_rows, global_batch, local_rows
from gigpo_jax.devices.mesh import make_mesh, replicated, shard_by_rules
from gigpo_jax.devices.per_device import experts_on_each_device, on_each_device
from gigpo_jax.learner import critic_model
from gigpo_jax.learner.packing import make_minibatches
from gigpo_jax.learner.samples import Sample
from gigpo_jax.learner.signals.critic import Critic
from gigpo_jax.learner.token_logprobs import make_token_logprobs
from gigpo_jax.models import decoder, lora
from gigpo_jax.models.attention import attention
from gigpo_jax.models.decoder_config import FULL, LINEAR, SLIDING, UNROTATED, DecoderConfig
from gigpo_jax.models.delta_config import DeltaConfig
from gigpo_jax.models.expert_config import ExpertConfig
from gigpo_jax.models.experts import Experts, apply_experts
from gigpo_jax.models.files import save_weights, weights
from gigpo_jax.models.files.save_weights import gather_to_host
from gigpo_jax.models.qwen2_5_vl import vision_config
from gigpo_jax.models.rope_scaling import RopeScaling
from gigpo_jax.models.vision.images import expand_image_tokens, prepare_images, token_grid
from gigpo_jax.models.vision.vision_config import VisionConfig
from gigpo_jax.policy import Policy, forward_function, lora_config, trained_shardings
from gigpo_jax.rl.critic import make_value_update
from gigpo_jax.rl.losses import LossSettings
from gigpo_jax.rl.optimizer import make_optimizer
from gigpo_jax.rl.train_step import TrainState, init_state, shard_state
from gigpo_jax.rl.types import StepBatch
from gigpo_jax.rl.update import make_update
from gigpo_jax.rl.value_targets import ValueTargets
from gigpo_jax.run.checkpoint import Checkpointer
from gigpo_jax.run.newest import newest_params
from gigpo_jax.run.state_checkpoints import restore_state, save_state
from tests.models.shapes import VL, VL3, random_params
from tests.models.vision.test_images import random_image

CONFIG = decoder.DecoderConfig(96, 16, 32, 2, 4, 2, 8)
EXPERTS = replace(CONFIG, model_type="qwen3_moe", experts=ExpertConfig(4, 2, 16))
FAMILIES = {
    # One head of keys, which no axis splits.
    "gemma3": replace(
        CONFIG,
        num_kv_heads=1,
        model_type="gemma3_text",
        layer_types=(SLIDING, FULL),
        sliding_window=4,
    ),
    "qwen3_5": replace(
        CONFIG,
        model_type="qwen3_5_text",
        layer_types=(LINEAR, FULL),
        rotary_dim=4,
        delta=DeltaConfig(1, 2, 6, 8),
    ),
    "llama3": replace(CONFIG, model_type="llama", rope_scaling=RopeScaling(8.0, 1.0, 4.0, 16)),
    "mistral": replace(CONFIG, model_type="mistral"),
    "smollm3": replace(CONFIG, model_type="smollm3", layer_types=(FULL, UNROTATED)),
}
# Muon for the matrices and AdamW for the rest: both kinds of moments are split.
OPTIMIZER = make_optimizer(lr=1e-3, name="muon")
UPDATES = 2


def make_samples() -> list[Sample]:
    """24 steps of unequal length that begin alike, the same in every process."""
    rng = np.random.default_rng(0)
    out = []
    for _ in range(24):
        p = int(rng.integers(2, 12))
        r = int(rng.integers(1, 6))
        logprobs = rng.normal(-4.5, 0.2, r).astype(np.float32)
        tokens = rng.integers(0, 96, p + r).astype(np.int32)
        tokens[: p // 2] = np.arange(p // 2)
        out.append(Sample(tokens[:p], tokens[p:], logprobs, float(rng.normal())))
    return out


def start_params(shape: DecoderConfig = CONFIG) -> decoder.Params:
    """The same random parameters in every process."""
    rng = np.random.default_rng(1)
    return jax.tree.map(
        lambda x: rng.normal(0, 0.2, x.shape).astype(np.float32), decoder.abstract_params(shape)
    )


def whole(params: decoder.Params) -> decoder.Params:
    """Sharded parameters as arrays of this host."""
    gather = jax.jit(
        lambda x: x, out_shardings=replicated(jax.tree.leaves(params)[0].sharding.mesh)
    )
    return jax.tree.map(lambda x: np.asarray(x.addressable_data(0)), gather(params))


def shardings(mesh: Mesh, shape: DecoderConfig = CONFIG) -> TrainState:
    shapes = decoder.abstract_params(shape)
    where, _ = shard_by_rules(mesh, decoder.logical_axes(shape), shapes)
    return shard_state(OPTIMIZER, shapes, where, replicated(mesh))


def make_shared_batch(
    mesh: Mesh, samples: list[Sample], seed: int, fields: Mapping[str, Any] | None = None
) -> StepBatch:
    """A minibatch of all steps. On several devices they share what they begin with."""
    (batch,) = make_minibatches(
        samples,
        steps=24,
        row_length=32,
        rows=local_rows(mesh, 8),
        rng=np.random.default_rng(seed),
        gather=all_hosts,
        fields=fields,
        longest_tree=0 if mesh.size == 1 else 32,
    )
    assert (batch.segment_ids.ndim == 4) == (mesh.size > 1)
    return batch


def train_adapter(mesh: Mesh, samples: list[Sample]) -> dict[str, np.ndarray]:
    """Two updates of an adapter; returns it and the last metrics by name. The model below does not
    change.
    """
    config = default_config()
    config.model.compute_dtype, config.model.lora.rank, config.model.path = "float32", 4, "given"
    forward = forward_function(config, CONFIG, mesh)
    wanted = lora_config(config)
    base = jax.device_put(start_params(), shardings(mesh).params)
    where = trained_shardings(config, CONFIG, mesh)
    adapter = jax.jit(lambda key: lora.init_adapter(CONFIG, wanted, key), out_shardings=where)(
        jax.random.key(3)
    )
    policy = Policy(CONFIG, base, None, adapter, wanted.scale)
    places = shard_state(OPTIMIZER, policy.trained, where, replicated(mesh))
    state = jax.jit(lambda p: init_state(p, OPTIMIZER), out_shardings=places)(policy.trained)
    update = make_update(
        forward, OPTIMIZER, LossSettings(0.2, 0.2), chunk=16, state_shardings=places
    )
    for seed in range(UPDATES):
        batch = make_shared_batch(mesh, samples, seed)
        state, metrics = update(state, global_batch(mesh, batch), policy.frozen)
    assert update._cache_size() == 1
    for x, y in zip(jax.tree.leaves(whole(base)), jax.tree.leaves(start_params()), strict=True):
        np.testing.assert_array_equal(np.asarray(x), y)
    local = jax.tree_util.tree_leaves_with_path(whole(state.params))
    found = {"adapter" + jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in local}
    if mesh.shape["fsdp"] > 1:
        down = state.params["layers"]["down"]  # [L, F over tensor, R], [L, R, D over fsdp]
        assert down["lora_a"].addressable_data(0).size * mesh.shape["tensor"] == down["lora_a"].size
        assert down["lora_b"].addressable_data(0).size * mesh.shape["fsdp"] == down["lora_b"].size
    return found | {f"adapter {name}": np.asarray(value) for name, value in metrics.items()}


def train_critic(mesh: Mesh, samples: list[Sample]) -> dict[str, np.ndarray]:
    """Two updates of a critic of its own; returns it, the last metrics, and its values of all
    samples by name.
    """
    config = default_config()
    config.rl.algorithm = "ppo"
    config.model.compute_dtype, config.critic.kind = "float32", "model"
    config.batch.rows, config.batch.row_length = 8, 32
    policy = Policy(CONFIG, None, None)
    where = jax.tree.map(
        lambda x: x.sharding, critic_model.abstract_critic_params(config, policy, mesh)
    )
    head = {
        "kernel": np.full((CONFIG.hidden_size, 1), 0.1, np.float32),
        "bias": np.zeros(1, np.float32),
    }
    params = jax.device_put(
        {n: x for n, x in start_params().items() if n != "head"} | {"value_head": head}, where
    )
    places = shard_state(OPTIMIZER, params, where, replicated(mesh))
    state = jax.jit(lambda p: init_state(p, OPTIMIZER), out_shardings=places)(params)
    update = make_value_update(
        critic_model.value_function(config, policy, mesh),
        OPTIMIZER,
        clip=0.5,
        state_shardings=places,
    )
    learnt = [
        ValueTargets(s.logprobs, s.logprobs + s.advantage, s.logprobs < -4.4) for s in samples
    ]
    samples = [
        replace(sample, fields={"values": values})
        for sample, values in zip(samples, learnt, strict=True)
    ]
    for seed in range(UPDATES):
        batch = make_shared_batch(mesh, samples, seed, fields=Critic.batch_fields)
        state, metrics = update(state, global_batch(mesh, batch), (None, None))
    assert update._cache_size() == 1
    if mesh.shape["fsdp"] > 1:
        kernel = state.params["value_head"]["kernel"]
        assert kernel.addressable_data(0).size * mesh.shape["fsdp"] == kernel.size
    local = jax.tree_util.tree_leaves_with_path(whole(state.params))
    found = {"critic" + jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in local}
    scored = critic_model.make_token_values(config, policy, mesh)(
        state.params, (None, None), samples
    )
    mean = all_rows(np.array([x.mean() for x in scored], np.float32))
    return (
        found
        | {"critic values": mean}
        | {f"critic {name}": np.asarray(value) for name, value in metrics.items()}
    )


def train_experts(mesh: Mesh, samples: list[Sample]) -> dict[str, np.ndarray]:
    """As `train`, of a model with experts; each device has its own."""
    found, state = train(mesh, samples, shape=EXPERTS)
    kernel = state.params["layers"]["expert_gate"]["kernel"]  # [L, E over tensor, D over fsdp, F]
    parts = (1, mesh.shape["tensor"], mesh.shape["fsdp"], 1)
    local = tuple(size // part for size, part in zip(kernel.shape, parts, strict=True))
    assert kernel.addressable_data(0).shape == local
    return {f"experts {name}": value for name, value in found.items()}


def train_families(mesh: Mesh, samples: list[Sample]) -> dict[str, np.ndarray]:
    """As `train`, of models of other families."""
    return {
        f"{family} {name}": value
        for family, shape in FAMILIES.items()
        for name, value in train(mesh, samples, shape=shape)[0].items()
    }


def train(
    mesh: Mesh, samples: list[Sample], rows: int = 8, shape: DecoderConfig = CONFIG
) -> tuple[dict[str, np.ndarray], TrainState]:
    """Two updates with all steps of all hosts; returns parameters and last metrics by name, and the
    state.
    """
    config = default_config()
    config.model.compute_dtype = "float32"
    forward = forward_function(config, shape, mesh)
    places = shardings(mesh, shape)
    params = jax.device_put(start_params(shape), places.params)
    state = jax.jit(lambda p: init_state(p, OPTIMIZER), out_shardings=places)(params)
    loss = LossSettings(0.2, 0.2, entropy_coef=0.01)
    update = make_update(forward, OPTIMIZER, loss, chunk=16, state_shardings=places)
    for seed in range(UPDATES):
        (batch,) = make_minibatches(
            samples,
            steps=24,
            row_length=32,
            rows=local_rows(mesh, rows),
            rng=np.random.default_rng(seed),
            gather=all_hosts,
        )
        state, metrics = update(state, global_batch(mesh, batch))
    assert update._cache_size() == 1
    local = jax.tree_util.tree_leaves_with_path(whole(state.params))
    found = {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in local}
    return found | {name: np.asarray(value) for name, value in metrics.items()}, state


def make_picture_samples(vision: VisionConfig) -> list[Sample]:
    """Ten prompts with two small images or one larger one, the larger ones last."""
    rng = np.random.default_rng(4)
    out = []
    images = [random_image(28, 56), random_image(56, 28), random_image(84, 56)]
    for number in range(10):
        shown = images[:2] if number < 7 else images[2:]
        text = expand_image_tokens(
            vision, [number, *[55] * len(shown)], [token_grid(vision, image) for image in shown]
        )
        prompt = np.array(text, np.int32)
        response = rng.integers(0, 50, 3 + number % 3).astype(np.int32)
        zeros = np.zeros(len(response), np.float32)
        out.append(Sample(prompt, response, zeros, images=prepare_images(vision, prompt, shown)))
    return out


def score_pictures(mesh: Mesh, local: slice = slice(None)) -> dict[str, np.ndarray]:
    """The mean log-probability of each response to a prompt with images, of all hosts.

    `local` are the samples of this one.
    """
    config = default_config()
    config.model.compute_dtype, config.batch.rows, config.batch.row_length = "float32", 8, 32
    means = {}
    for shape in (VL, VL3):
        where, _ = shard_by_rules(mesh, decoder.logical_axes(shape), decoder.abstract_params(shape))
        params = jax.device_put(jax.tree.map(np.asarray, random_params(shape)), where)
        policy = Policy(shape, params, None)
        samples = make_picture_samples(vision_config(shape))[local]
        found = make_token_logprobs(config, policy, mesh, 1.0)(params, None, samples).logprob
        means[shape.vision.model_type] = all_rows(np.array([x.mean() for x in found], np.float32))
    return means


def check_attention(mesh: Mesh) -> None:
    """An attention that sees the rows and heads of one device gives what one gives that sees all of
    them.
    """
    rng = np.random.default_rng(2)
    segments = np.repeat([[1, 2]] * 8, 8, axis=1).astype(np.int32)
    arrays = [rng.normal(size=(8, 16, heads, 8)).astype(np.float32) for heads in (4, 2, 2)]
    spread = jax.jit(on_each_device(mesh, attention, 2))(*arrays, segments)
    assert len({str(shard.index) for shard in spread.addressable_shards}) == 8
    np.testing.assert_allclose(spread, attention(*arrays, segments), rtol=1e-5, atol=1e-6)


def check_experts(mesh: Mesh) -> None:
    """Experts of each device give what all give, with gradients; three experts are not split."""
    rng = np.random.default_rng(3)
    for count in (4, 3):
        experts = ExpertConfig(count, 2, 6)
        ids = np.stack([rng.permutation(count)[:2] for _ in range(8 * 400)]).reshape(8, 400, 2)
        sizes = ((8, 400, 4), ids.shape, (count, 4, 6), (count, 4, 6), (count, 6, 4))
        floats = [rng.normal(size=size).astype(np.float32) for size in sizes]
        functions = (apply_experts, experts_on_each_device(mesh, apply_experts, experts))
        results = []
        for apply in functions:

            def loss(
                x: jax.Array,
                gates: jax.Array,
                *kernels: jax.Array,
                apply: Experts = apply,
                ids: np.ndarray = ids,
            ) -> tuple[jax.Array, jax.Array]:
                out = apply(x, ids, gates, *kernels)
                return jnp.square(out).mean(), out

            results.append(jax.jit(jax.grad(loss, argnums=range(5), has_aux=True))(*floats))
        for one, other in zip(*map(jax.tree.leaves, results), strict=True):
            np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-5)


def check_saving(mesh: Mesh, folder: str) -> None:
    """Two hosts save what they hold together, one layer after the other."""
    params = jax.device_put(start_params(EXPERTS), shardings(mesh, EXPERTS).params)
    sizes = []

    def gather(array: jax.Array) -> np.ndarray:
        sizes.append(array.size)
        return gather_to_host(array)

    with mock.patch.object(save_weights, "gather_to_host", gather):
        save_weights.save_hf(folder, EXPERTS, params)
    # The embedding is larger than the experts of one layer, and smaller than the experts of both.
    assert max(sizes) == EXPERTS.vocab_size * EXPERTS.hidden_size
    if jax.process_index() == 0:
        _, loaded = weights.load_hf(folder)
        for one, other in zip(*map(jax.tree.leaves, (loaded, start_params(EXPERTS))), strict=True):
            np.testing.assert_array_equal(one, other)


def compare(got: dict[str, np.ndarray], expected_file: str) -> None:
    expected = np.load(expected_file)
    assert set(expected) == set(got)
    for name in expected:
        np.testing.assert_allclose(got[name], expected[name], rtol=1e-4, atol=2e-4, err_msg=name)


def mesh(expected: str, folder: str) -> None:
    """2 x 2 x 2 devices give what one device gives; a checkpoint of theirs moves to 1 x 8 x 1."""
    grid = make_mesh(2, -1, 2)
    rows = global_batch(grid, {"rows": np.arange(24).reshape(3, 8)})["rows"]
    assert {tuple(shard.data[0].tolist()) for shard in rows.addressable_shards} == {
        (0, 1),
        (2, 3),
        (4, 5),
        (6, 7),
    }
    check_attention(grid)
    check_experts(grid)
    got, state = train(grid, make_samples())
    got |= train_adapter(grid, make_samples()) | train_critic(grid, make_samples())
    got |= train_experts(grid, make_samples()) | train_families(grid, make_samples())
    compare(got | score_pictures(grid), expected)
    moments = state.opt_state[1].inner_states
    matrix_moment = moments["muon"].inner_state[0].mu
    for tree in (state.params, matrix_moment):
        leaf = tree["layers"]["gate"]["kernel"]
        assert leaf.addressable_data(0).size * 4 == leaf.size
    for tree in (moments["adamw"].inner_state.mu, moments["adamw"].inner_state.nu):
        assert tree["embed"].sharding == state.params["embed"].sharding
    checkpoints = Checkpointer(folder)
    save_state(checkpoints, 7, state, {"iteration": 7})
    places = shardings(make_mesh(1, 8, 1))
    restored, record = restore_state(checkpoints, state, places)
    checkpoints.close()
    assert record == {"iteration": 7}
    for x, y, place in zip(*map(jax.tree.leaves, (restored, state, places)), strict=True):
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y))
        assert x.sharding.is_equivalent_to(place, x.ndim)
    params, iteration = newest_params(folder, restored.params)
    assert iteration == 7
    np.testing.assert_array_equal(np.asarray(params["embed"]), np.asarray(state.params["embed"]))


def host(expected: str, folder: str, index: str, port: str) -> None:
    """One host of two with unequal shares of the steps; together they give what one device
    gives.
    """
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        f"127.0.0.1:{port}",
        2,
        int(index),
        initialization_timeout=200,
        heartbeat_timeout_seconds=200,
    )
    assert jax.process_count() == 2
    samples = make_samples()
    grid = make_mesh(-1, 2, 1)
    check_saving(grid, folder)
    mine = samples[:15] if index == "0" else samples[15:]
    shown = slice(7) if index == "0" else slice(7, None)
    got = train(grid, mine)[0] | train_adapter(grid, mine) | train_critic(grid, mine)
    got |= train_experts(grid, mine) | train_families(grid, mine)
    compare(got | score_pictures(grid, shown), expected)


if __name__ == "__main__":
    {"mesh": mesh, "host": host}[sys.argv[1]](*sys.argv[2:])
