"""The memory estimate against arithmetic by hand."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gigpo_jax.config import default_config, resolve
from gigpo_jax.config.command_line import load_config
from gigpo_jax.core.errors import InputError
from gigpo_jax.devices.memory import (
    GIB,
    REPLAYED,
    check_memory,
    engine_estimate,
    memory_estimate,
    peak,
)
from gigpo_jax.engines.jax.programs import EngineSettings
from gigpo_jax.models.published import PUBLISHED, PUBLISHED_TEXT
from gigpo_jax.models.vision.vision_config import QWEN3_VL, VisionConfig
from gigpo_jax.tools.preflight.shapes import model_shape
from gigpo_jax.tools.preflight.targets import TARGETS


def test_estimate_of_the_published_1_5b_run():
    estimate = memory_estimate(resolve(default_config()), PUBLISHED["1.5b"], devices=1)
    assert (
        estimate["parameters"]
        == estimate["gradients"]
        == estimate["reference policy"]
        == 4 * 1_543_714_304
    )
    assert estimate["optimizer"] == 8 * 1_543_714_304
    # 28 layers x 2 heads x 128 x (key and value) x 2 bytes = 28,672 bytes a token; 128 slots of
    # 2,560 tokens.
    assert estimate["KV cache"] == 28_672 * 128 * 2560


def test_a_server_of_an_engine_needs_no_memory_for_updates():
    """1.5B on a v5e host with 4 chips of 16 GiB: 2 bytes a parameter and a quarter of the cache."""
    config = default_config()
    config.model.param_dtype = "bfloat16"
    config = resolve(config, trains=False)
    needed = 2 * 1_543_714_304 + 28_672 * 128 * 2560 / 4
    check_memory(config, PUBLISHED["1.5b"], 4, limit=int(needed), trains=False)
    with pytest.raises(InputError, match=r"\(parameters 2\.9, KV cache 2\.2\)"):
        check_memory(config, PUBLISHED["1.5b"], 4, limit=int(needed) - 1, trains=False)
    with pytest.raises(InputError, match="optimizer"):
        check_memory(config, PUBLISHED["1.5b"], 4, limit=16 * 2**30)


def test_experts_and_what_the_engine_keeps_of_them():
    config = default_config()
    config.model.replay_routes = True
    estimate = memory_estimate(resolve(config), PUBLISHED["qwen3-30b-a3b"], devices=1)
    assert estimate["parameters"] == 4 * 30_532_122_624
    # 48 layers: 4 heads x 128 x (key and value) x 2 bytes, and the numbers of 8 experts of a byte;
    # 128 slots of 2,560 tokens.
    assert estimate["KV cache"] == 48 * (2048 + 8) * 128 * 2560
    config.model.remat = "none"
    more = memory_estimate(resolve(config), PUBLISHED["qwen3-30b-a3b"], devices=1)
    # A token: 12 rows of experts (8, and gaps) with 3 x 2048 + 4 x 768 numbers, and 12 x 2048.
    kept = 12 * (3 * 2048 + 4 * 768) + 12 * 2048
    tokens = config.batch.rows * config.batch.row_length
    assert more["activations"] - estimate["activations"] == tokens * 48 * (kept - 2048) * 2


def test_the_cache_of_a_prompt_in_chunks_has_room_for_a_padded_last_chunk():
    config = default_config()
    for chunk, tokens in ((512, 2560), (600, 3000)):
        config.engine.prefill_chunk = chunk
        assert (
            memory_estimate(resolve(config), PUBLISHED["1.5b"], devices=1)["KV cache"]
            == 28_672 * 128 * tokens
        )
        assert EngineSettings(slots=128, max_length=2560, prefill_chunk=chunk).capacity == tokens


def test_layers_with_windows_have_caches_of_their_windows():
    config = default_config()
    shape = PUBLISHED_TEXT["gemma-3-270m-it"]
    # 15 of 18 layers, of 256 x (key and value) x 2 bytes a token: a window of 512 tokens, and for
    # chunks as much again and a chunk, or all chunks of a call.
    for chunk, rows, tokens in ((0, 8, 512), (32, 8, 1056), (32, 32, 1536)):
        config.engine.prefill_chunk, config.engine.prefill_rows = chunk, (rows,)
        estimate = memory_estimate(resolve(config), shape, devices=1)
        assert estimate["KV cache"] == 128 * 1024 * (3 * 2560 + 15 * tokens)


def test_first_moments_of_two_bytes():
    config = default_config()
    config.optim.moment_dtype = "bfloat16"
    assert (
        memory_estimate(resolve(config), PUBLISHED["1.5b"], devices=1)["optimizer"]
        == 6 * 1_543_714_304
    )


UPDATE = ("parameters", "gradients", "optimizer", "reference policy", "activations")


def test_an_update_of_1_5b_is_within_5_percent_of_what_an_h200_needed():
    config = default_config()
    config.rl.kl_coef = 0.0
    config.batch.rows, config.batch.row_length = 1, 8192
    estimate = memory_estimate(resolve(config), PUBLISHED["1.5b"], devices=1, platform="gpu")
    measured = json.loads(Path("benchmarks/results/nvidia_h200.json").read_text())["train"]
    needed = measured["peak_memory_gb"] * 1e9
    assert sum(estimate[name] for name in UPDATE) == pytest.approx(needed, rel=0.05)


@pytest.mark.parametrize(
    ("model", "target", "needed"),
    [
        ("Qwen2.5-0.5B-Instruct", "h100x1", 12.75),
        ("Qwen2.5-1.5B-Instruct", "h100x1", 35.40),
        ("Qwen2.5-7B-Instruct", "h100x8", 25.06),
        ("Llama-3.2-1B-Instruct", "h100x1", 29.19),
        ("Mistral-7B-Instruct-v0.3", "h100x8", 22.43),
        ("SmolLM2-1.7B-Instruct", "h100x1", 38.36),
        ("SmolLM3-3B", "h100x2", 36.49),
        ("gemma-3-270m-it", "h100x1", 9.17),
        ("Qwen3.5-0.8B", "h100x1", 26.69),
        ("Qwen2.5-0.5B-Instruct", "v5e-8", 3.00),
        ("Qwen2.5-1.5B-Instruct", "v5e-8", 7.32),
        ("Llama-3.2-1B-Instruct", "v5e-8", 6.74),
        ("SmolLM2-1.7B-Instruct", "v5e-8", 7.33),
        ("SmolLM3-3B", "v5e-8", 12.85),
        ("gemma-3-270m-it", "v5e-8", 2.60),
        ("Qwen3.5-0.8B", "v5e-8", 6.66),
    ],
)
def test_an_update_is_within_5_percent_of_the_compiled_one(model, target, needed):
    """GiB: in memory without the engine, and the update's temporaries, as `gigpo preflight` prints.

    Configs are alfworld:1.5b, on h100x8 alfworld:7b; mesh.fsdp is the number of devices.
    """
    devices = TARGETS[target].count
    variant = "7b" if target == "h100x8" else "1.5b"
    flags = [f"--config.model.path={model}", f"--config.mesh.fsdp={devices}"]
    config = resolve(load_config(f"alfworld:{variant}", flags))
    platform = "tpu" if target.startswith("v5e") else "gpu"
    estimate = memory_estimate(config, model_shape(config), devices, platform=platform)
    assert sum(estimate[name] for name in UPDATE) / GIB == pytest.approx(needed, rel=0.05)


@pytest.mark.parametrize(
    ("variant", "model", "flags", "needed"),
    [
        # v5e-8
        ("1.5b", "Qwen2.5-1.5B-Instruct", {"model.lora.rank": 32}, 4.135),
        # v5p-16
        (
            "7b",
            "Qwen3-30B-A3B",
            {"batch.rows": 8, "rl.kl_coef": 0, "optim.moment_dtype": "bfloat16"},
            63.45,
        ),
    ],
)
def test_updates_of_adapters_and_experts_are_within_5_percent(variant, model, flags, needed):
    """As above, on 8 TPUs."""
    flags = {"model.path": model, "mesh.fsdp": 8} | flags
    arguments = [f"--config.{key}={value}" for key, value in flags.items()]
    config = resolve(load_config(f"alfworld:{variant}", arguments))
    estimate = memory_estimate(config, model_shape(config), devices=8)
    assert sum(estimate[name] for name in UPDATE) / GIB == pytest.approx(needed, rel=0.05)


def test_axes_of_an_adapter_that_no_axis_of_the_mesh_splits_are_whole_on_each_device():
    config = default_config()
    config.model.path, config.model.lora.rank = "a/model", 32
    config.model.lora.targets = ("q_proj", "down_proj")
    config.mesh.fsdp = 8
    estimate = memory_estimate(resolve(config), PUBLISHED["1.5b"], devices=8)
    # 28 layers: fsdp splits the inputs of q_proj and the outputs of down_proj.
    numbers = 28 * 32 * (1536 / 8 + 1536 + 8960 + 1536 / 8)
    assert estimate["gradients"] == estimate["reference policy"] == pytest.approx(4 * numbers)


def test_trees_of_texts_have_masks_on_accelerators():
    config = resolve(default_config())
    config.batch.rows, config.batch.row_length = 4, 32768
    config.mesh.fsdp = 2

    def activations(platform: str) -> float:
        estimate = memory_estimate(config, PUBLISHED["0.5b"], devices=2, platform=platform)
        return estimate["activations"]

    separate = {platform: activations(platform) for platform in ("tpu", "gpu", "cpu")}
    config.batch.share_prefixes = True
    masks = {platform: activations(platform) - rest for platform, rest in separate.items()}
    assert masks == {"tpu": 2 * 6 * 2**30, "gpu": 2 * 6 * 2**30, "cpu": 0}


def test_muon_has_no_second_moments_of_matrices():
    config = default_config()
    config.optim.name = "muon"
    estimate = memory_estimate(resolve(config), PUBLISHED["1.5b"], devices=1)
    # Qwen2.5-1.5B: of a layer's parameters, query and out, key and value, and the MLP.
    matrices = 28 * (2 * 1536 * 1536 + 2 * 1536 * 256 + 3 * 1536 * 8960)
    assert estimate["optimizer"] == 8 * 1_543_714_304 - 4 * matrices


def test_fsdp_splits_what_belongs_to_parameters():
    config = default_config()
    config.mesh.fsdp = 4
    one = memory_estimate(resolve(default_config()), PUBLISHED["7b"], devices=1)
    four = memory_estimate(resolve(config), PUBLISHED["7b"], devices=4)
    assert four["optimizer"] == one["optimizer"] / 4
    assert four["KV cache"] == one["KV cache"] / 4
    two_hosts = memory_estimate(
        resolve(config), PUBLISHED["7b"], devices=4, hosts=2
    )  # each with as many slots
    assert two_hosts["KV cache"] == one["KV cache"] / 2


def test_the_engine_has_weights_of_its_own_where_the_learners_are_split_or_of_another_dtype():
    config = default_config()
    parameters = 1_543_714_304
    for fsdp, tensor, dtype, copied in (
        (1, 1, "bfloat16", 2 * parameters),
        (1, 1, "float32", 0),
        (4, 1, "float32", 4 * parameters),
        (4, 2, "bfloat16", parameters),
    ):
        config.mesh.fsdp, config.mesh.tensor, config.engine.dtype = fsdp, tensor, dtype
        estimate = memory_estimate(resolve(config), PUBLISHED["1.5b"], devices=fsdp * tensor)
        assert estimate["engine's weights"] == copied
    config.engine.name = "vllm"
    assert memory_estimate(resolve(config), PUBLISHED["1.5b"], devices=8)["engine's weights"] == 0


def test_rollouts_ahead_need_older_policies_and_the_engine_may_have_devices_of_its_own():
    config = default_config()
    parameters = 1_543_714_304
    config.mesh.fsdp = 2
    for updates, own, dtype, here, there in (
        (0, 0, "bfloat16", 2 * parameters, 2 * parameters),
        (3, 0, "bfloat16", 6 * parameters, 6 * parameters),
        (
            3,
            4,
            "bfloat16",
            2 * parameters,
            6 * parameters,
        ),  # they pass through the learner's devices
        (1, 4, "float32", 4 * parameters, 4 * parameters),
    ):
        config.train.max_staleness, config.engine.devices, config.engine.dtype = updates, own, dtype
        found = resolve(config)
        estimate, other = (
            of(found, PUBLISHED["1.5b"], devices=2) for of in (memory_estimate, engine_estimate)
        )
        assert estimate["older policies"] == updates * 4 * parameters / 2
        assert (estimate["engine's weights"], other["engine's weights"]) == (here, there)
        assert other["KV cache"] == 28_672 * 128 * 2560 / (own or 2) * (
            2 if dtype == "float32" else 1
        )
        assert estimate["KV cache"] == (0 if own else other["KV cache"])
    assert peak(found, estimate) == sum(estimate.values()) - estimate["engine's weights"]
    found.unlock().engine.slots = 1024
    with pytest.raises(
        InputError,
        match=r"^config\.engine\.slots=1024: .* the run needs 40\.8 \(engine's weights 5\.8, KV ",
    ):
        check_memory(found, PUBLISHED["1.5b"], devices=2, limit=int(30 * GIB))


def test_weights_in_flight_leave_no_older_policies():
    config = default_config()
    config.train.max_staleness, config.engine.name = 1, "vllm"
    estimates = []
    for inflight in (False, True):
        config.train.inflight = inflight
        estimates.append(memory_estimate(resolve(config), PUBLISHED["1.5b"], devices=2))
    assert estimates[0]["older policies"] > 0
    assert estimates[1] == estimates[0] | {"older policies": 0}


@pytest.mark.parametrize(
    ("updates", "own", "key", "fix"),
    [
        (8, 0, "train.max_staleness=8", "or a smaller train.max_staleness"),
        (1, 0, "train.max_staleness=1", "or a smaller train.max_staleness"),
        (8, 2, "train.max_staleness=8", "or a smaller train.max_staleness"),
        (1, 2, "engine.tensor=0", "engine.tensor splits the engine's weights"),
        (0, 0, "engine.tensor=0", "engine.tensor splits the engine's weights"),
    ],
)
def test_rollouts_ahead_are_named_where_the_engines_weights_of_their_updates_do_not_fit(
    updates, own, key, fix
):
    config = default_config()
    config.mesh.fsdp, config.batch.rows, config.rl.kl_coef, config.engine.slots = 16, 16, 0.0, 16
    config.train.max_staleness, config.engine.devices, config.model.remat = updates, own, "offload"
    with pytest.raises(InputError) as error:
        check_memory(resolve(config), PUBLISHED["7b"], devices=16, limit=int(5 * GIB))
    assert str(error.value).startswith(f"config.{key}: ")
    assert fix in str(error.value)
    assert ("train.max_staleness" in str(error.value)) == (updates > 0)
    assert ("engine.tensor splits" in str(error.value)) == (not updates or own > 0)


def test_the_published_1_5b_run_fits_eight_devices_of_16_gib_with_room():
    config = default_config()
    config.mesh.fsdp, config.batch.rows = 8, 8
    estimate = memory_estimate(resolve(config), PUBLISHED["1.5b"], devices=8)
    assert estimate["KV cache"] == 28_672 * 16 * 2560  # 16 slots each
    assert 7 * GIB < peak(config, estimate) < 7.5 * GIB
    check_memory(resolve(config), PUBLISHED["1.5b"], devices=8, limit=int(16 * GIB))


@pytest.mark.parametrize(("slots", "key"), [(192, r"batch\.rows=32"), (256, r"engine\.slots=256")])
def test_the_key_of_a_part_that_is_freed_at_the_peak_is_not_named(slots, key):
    """The cache is the largest part of both, but with 192 slots the update needs more than the
    engine.
    """
    config = default_config()
    config.batch.rows, config.engine.slots, config.rl.kl_coef = 32, slots, 0.0
    with pytest.raises(InputError, match=rf"^config\.{key}: "):
        check_memory(resolve(config), PUBLISHED["1.5b"], devices=1, limit=2**30)


def test_a_run_that_cannot_fit_is_refused_with_its_estimate():
    with pytest.raises(
        InputError,
        match=r"a device has 80.0 GiB, the run needs 1\d\d.* optimizer 56.7.*mesh.fsdp",
    ):
        check_memory(resolve(default_config()), PUBLISHED["7b"], devices=1, limit=int(80 * GIB))
    check_memory(resolve(default_config()), PUBLISHED["1.5b"], devices=1, limit=int(80 * GIB))


def test_too_many_slots_are_refused_on_a_cpu_too():
    config = default_config()
    config.engine.slots = 10**6
    with pytest.raises(
        InputError, match=r"^config\.engine\.slots=1000000: a device has .*KV cache"
    ):
        check_memory(resolve(config), PUBLISHED["1.5b"], devices=1)


def test_on_cpus_a_bfloat16_engine_has_weights_of_its_own(monkeypatch):
    config = default_config()
    config.model.path, config.model.lora.rank, config.model.param_dtype = "a/model", 8, "bfloat16"
    config = resolve(config)
    shared, own = (
        memory_estimate(config, PUBLISHED["1.5b"], 1, platform=name) for name in ("tpu", "cpu")
    )
    assert own == shared | {"engine's weights": shared["engine's weights"] + 2 * 1_543_714_304}
    check_memory(config, PUBLISHED["1.5b"], devices=1, limit=int(peak(config, shared)))
    monkeypatch.setattr(
        "gigpo_jax.devices.memory.smallest_device_bytes", lambda: int(peak(config, shared))
    )
    with pytest.raises(InputError, match="engine's weights"):
        check_memory(config, PUBLISHED["1.5b"], devices=1, platform="cpu")


def test_with_an_adapter_only_it_has_gradients_moments_and_a_reference():
    config = default_config()
    config.model.path, config.model.lora.rank, config.model.lora.targets = (
        "a/model",
        32,
        ("q_proj", "down_proj"),
    )
    config.model.param_dtype = "bfloat16"
    estimate = memory_estimate(resolve(config), PUBLISHED["1.5b"], devices=1)
    pairs = 28 * 32 * (1536 + 1536 + 8960 + 1536)  # layers x rank x (in + out of each)
    assert estimate["parameters"] == 2 * 1_543_714_304 + 4 * pairs
    assert estimate["gradients"] == estimate["reference policy"] == 4 * pairs
    assert estimate["optimizer"] == 8 * pairs


def test_an_algorithm_without_a_reference_policy_books_none():
    config = default_config()
    config.rl.algorithm = "dapo"
    assert memory_estimate(resolve(config), PUBLISHED["1.5b"], devices=1)["reference policy"] == 0
    config.rl.kl_coef = 0.02
    assert (
        memory_estimate(resolve(config), PUBLISHED["1.5b"], devices=1)["reference policy"]
        == 4 * 1_543_714_304
    )


def test_bytes_of_signals_are_split_like_parameters():
    config = default_config()
    config.mesh.fsdp = 4
    estimate = memory_estimate(
        resolve(config), PUBLISHED["1.5b"], devices=4, signals={"teacher": 8}
    )
    assert estimate["teacher"] == 2
    rest = memory_estimate(resolve(config), PUBLISHED["1.5b"], devices=4)
    assert sum(estimate.values()) == sum(rest.values()) + 2


def test_features_of_earlier_layers_are_kept_with_the_activations():
    vision = QWEN3_VL
    config = default_config()
    config.batch.rows, config.model.remat, config.engine.name = 1, "full", "vllm"
    estimates = [
        memory_estimate(resolve(config), replace(PUBLISHED["qwen3-8b"], vision=each), devices=1)
        for each in (vision, replace(vision, deep_layers=()))
    ]
    with_features, without = (estimate["activations of the vision tower"] for estimate in estimates)
    # Of each token three results of four patches, and three features; in bfloat16.
    assert with_features - without == 4096 * 2 * 3 * (4 * 1152 + 4096)
    merger = 2 * 4608 + 4608 * 4608 + 4608 + 4608 * 4096 + 4096
    assert estimates[0]["parameters"] - estimates[1]["parameters"] == 3 * merger * 4


def test_replayed_experts_are_split_like_rows_and_there_in_updates_alone():
    config = default_config()
    config.mesh.fsdp = config.mesh.tensor = 2
    config.engine.name = "vllm"
    estimate = memory_estimate(resolve(config), PUBLISHED["1.5b"], devices=4, signals={REPLAYED: 8})
    assert estimate[REPLAYED] == 4
    rest = memory_estimate(resolve(config), PUBLISHED["1.5b"], devices=4)
    assert peak(config, estimate) == peak(config, rest) + 4
    config.engine.name = "jax"
    config.engine.slots = 4096  # a rollout needs more than an update
    estimate, rest = (
        memory_estimate(resolve(config), PUBLISHED["1.5b"], devices=4, signals=signals)
        for signals in ({REPLAYED: 8}, {})
    )
    assert peak(config, estimate) == peak(config, rest)


def test_a_vision_tower_has_weights_moments_and_activations():
    shape = replace(PUBLISHED["3b"], vision=VisionConfig())
    config = default_config()
    layer = (
        1280 * 3840
        + 3840
        + 1280 * 1280
        + 1280
        + 2 * (1280 * 3420 + 3420)
        + 3420 * 1280
        + 1280
        + 2 * 1280
    )
    tower = 1176 * 1280 + 32 * layer + 1280 + 5120 * 5120 + 5120 + 5120 * 2048 + 2048
    config.mesh.fsdp, config.batch.rows, config.model.remat = 2, 8, "full"
    config.sampling.max_prompt_tokens, config.engine.prefill_rows = 1024, (1,)
    estimate, text = (
        memory_estimate(resolve(config), each, devices=2) for each in (shape, PUBLISHED["3b"])
    )
    assert estimate["parameters"] - text["parameters"] == 4 * tower / 2
    assert estimate["optimizer"] - text["optimizer"] == 8 * tower / 2
    row, prompt = (
        4 * 4096,
        4 * 1024,
    )  # patches: a token of a picture is four; a row has several prompts
    assert (
        estimate["activations of the vision tower"] == 4 * row * 32 * 1280 * 2
    )  # of four rows in bfloat16
    assert text["activations of the vision tower"] == 0
    config.batch.rows, config.engine.prefill_rows = 2, (4, 64)
    prefill = (
        64 * prompt * (6 * 1280 + 2 * 3420) * 2
    )  # of one layer, more than the update of one row has
    assert (
        memory_estimate(resolve(config), shape, devices=2)["activations of the vision tower"]
        == prefill
    )
    config.engine.name = "vllm"
    assert (
        memory_estimate(resolve(config), shape, devices=2)["activations of the vision tower"]
        == row * 32 * 1280 * 2
    )
    with pytest.raises(InputError, match=r"the run needs .* activations of the vision tower 1\.2"):
        check_memory(resolve(config), shape, devices=2, limit=int(8 * GIB))
