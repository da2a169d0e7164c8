"""Runs that train an adapter: only the adapter changes, is saved and resumed; the export is the
merged model.
"""

import gc
import json
import os
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import jax
import numpy as np
import pytest

from configs.quickstart import get_config
from gigpo_jax.config import default_config, resolve
from gigpo_jax.core.errors import InputError
from gigpo_jax.devices.mesh import make_mesh
from gigpo_jax.engines.jax.jax_engine import EngineSettings, JaxEngine
from gigpo_jax.learner.learner import Learner
from gigpo_jax.learner.packing import make_minibatches
from gigpo_jax.models import decoder, lora, next_tokens
from gigpo_jax.models.files.weights import load_hf
from gigpo_jax.models.linear_names import TARGETS
from gigpo_jax.modes import evaluate, export, sft, train
from gigpo_jax.modes.model_folder import save_policy
from gigpo_jax.policy import Policy, load_policy
from gigpo_jax.run.workdir import claim_workdir, open_workdir
from tests import runs
from tests.devices.multi_device import make_samples
from tests.metrics import records

ROOT = Path(__file__).parents[1]
TINY = ROOT / "models/alfworld_tiny"


def learner_of(**changes: object) -> tuple[Learner, Policy]:
    config = default_config()
    config.model.path, config.model.lora.rank = str(TINY), 4
    config.model.compute_dtype, config.model.remat = "float32", "none"
    config.sampling.max_prompt_tokens, config.sampling.max_response_tokens = 16, 8
    config.batch.row_length, config.batch.rows, config.optim.lr = 32, 4, 1e-2
    config.model.update(changes)
    config = resolve(config)
    mesh = make_mesh(1, 1, 1, devices=jax.devices()[:1])
    policy = load_policy(config, mesh)
    return Learner(config, policy, mesh), policy


def host_copy(tree: object) -> object:
    return jax.tree.map(lambda x: np.array(x, np.float32), tree)


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
def test_updates_change_the_adapter_and_not_a_bit_below_it(dtype: str) -> None:
    """With the KL term on, whose reference is the model without the adapter."""
    learner, policy = learner_of(param_dtype=dtype)
    before = host_copy(policy.params)
    start = host_copy(policy.adapter)
    reference = learner._reference
    assert lora.adapter_targets(reference) == tuple(TARGETS)
    moments = jax.tree.leaves(learner.state.opt_state)
    assert sum(x.size for x in moments if x.ndim) == 2 * sum(x.size for x in jax.tree.leaves(start))
    batches = make_minibatches(
        make_samples(), steps=24, row_length=32, rows=4, rng=np.random.default_rng(0)
    )
    first = learner._update(batches, 0, lambda done, total: None)
    assert first["policy/kl"] == pytest.approx(0, abs=1e-6)
    later = learner._update(batches, 0, lambda done, total: None)
    assert later["policy/kl"] > 1e-4
    assert learner.compile_count == 2  # the update and the score
    for x, y in zip(jax.tree.leaves(policy.frozen), jax.tree.leaves(before), strict=True):
        assert x.dtype == dtype
        np.testing.assert_array_equal(np.asarray(x, np.float32), y)
    for x, y in zip(jax.tree.leaves(learner.state.params), jax.tree.leaves(start), strict=True):
        assert x.dtype == np.float32
        assert np.abs(np.asarray(x) - y).max() > 1e-3
    # The reference still is the model of the start.
    tokens = np.arange(12, dtype=np.int32)[None]
    base = next_tokens.logits(policy.config, policy.params, tokens)
    kept = lora.attach_adapter(policy.params, reference, policy.scale)
    np.testing.assert_array_equal(next_tokens.logits(policy.config, kept, tokens), base)
    assert np.abs(next_tokens.logits(policy.config, learner.params, tokens) - base).max() > 0.01


@pytest.mark.parametrize(
    ("rank", "copies"), [pytest.param(0, 4.0, marks=pytest.mark.slow), (4, 1.0)]
)
def test_nothing_is_kept_twice(rank: int, copies: float) -> None:
    """All trained: parameters, two moments, reference. An adapter of rank 4 and what belongs to it:
    a quarter.
    """
    gc.collect()
    before = sum(x.nbytes for x in jax.live_arrays())
    learner, policy = learner_of(lora={"rank": rank})
    size = sum(x.nbytes for x in jax.tree.leaves(policy.params))
    del policy
    batches = make_minibatches(
        make_samples(), steps=24, row_length=32, rows=4, rng=np.random.default_rng(0)
    )
    learner._update(batches, 0, lambda done, total: None)
    gc.collect()
    held = (sum(x.nbytes for x in jax.live_arrays()) - before) / size
    assert copies <= held < copies + 0.3


def test_the_export_of_a_model_in_bfloat16_keeps_what_was_learnt(tmp_path: Path) -> None:
    learner, policy = learner_of(param_dtype="bfloat16")
    trained = jax.tree.map(
        lambda x: x + 1e-4, learner.state.params
    )  # changes weights by less than bfloat16 resolves
    base = kernels_of(policy.params)
    pairs = lora.scale_adapter(trained, policy.scale)["layers"]
    change = {name: np.matmul(pair["lora_a"], pair["lora_b"]) for name, pair in pairs.items()}
    config = default_config()
    config.model.path, config.model.lora.rank = str(TINY), 4
    save_policy(tmp_path / "out", resolve(config), policy, trained)
    saved = kernels_of(load_hf(tmp_path / "out")[1])
    for name, expected in change.items():
        assert np.abs(expected).mean() < 2**-8 * np.abs(base[name]).mean()
        np.testing.assert_allclose(
            saved[name] - base[name], expected, atol=0.01 * np.abs(expected).mean()
        )


def kernels_of(params: decoder.Params) -> dict[str, np.ndarray]:
    return {
        name: np.array(params["layers"][name]["kernel"], np.float32) for name in TARGETS.values()
    }


def test_an_adapter_of_a_tower_needs_one() -> None:
    with pytest.raises(
        InputError, match=r"config\.model\.lora\.vision=True: the model has no vision tower"
    ):
        learner_of(lora={"vision": True})


def test_a_rank_that_is_not_low_is_refused() -> None:
    width = load_hf(TINY)[0].hidden_size
    learner_of(lora={"rank": width})
    with pytest.raises(
        InputError, match=rf"config\.model\.lora\.rank={width + 1}: the model is only {width} wide"
    ):
        learner_of(lora={"rank": width + 1})


def test_an_engine_that_computes_in_another_dtype_casts_the_adapter_alone() -> None:
    learner, policy = learner_of(param_dtype="bfloat16")
    with JaxEngine(
        policy.config, learner.params, EngineSettings(slots=2, max_length=32, dtype="bfloat16")
    ) as engine:
        ready = engine._programs.prepare_params(learner.params)
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(ready)} == {"bfloat16"}
    assert ready["embed"] is policy.params["embed"]
    kernels = policy.params["layers"]["up"]["kernel"]
    for layer, kernel in zip(ready["layers"], kernels, strict=True):  # apart on CPUs
        np.testing.assert_array_equal(layer["up"]["kernel"], kernel.T)


def run(workdir: Path, mode: str, *flags: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    done = runs.run(
        workdir,
        mode,
        f"--config={ROOT / 'configs/quickstart.py'}",
        "--config.model.lora.rank=4",
        "--config.model.lora.alpha=8.0",
        "--config.optim.lr=0.003",
        "--config.train.groups=4",
        "--config.rl.kl_coef=0.01",
        "--config.checkpoint.every=1",
        "--config.eval.every=0",
        "--config.eval.tasks=4",
        "--config.eval.greedy=False",
        "--config.train.iterations=3",
        "--config.env.workers=1",
        *flags,
    )
    assert done.returncode == status, done.stdout[-2000:] + done.stderr[-2000:]
    return done


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run, and its export."""
    workdir = tmp_path_factory.mktemp("lora") / "run"
    run(workdir, "train")
    run(workdir, "export")
    return workdir


@pytest.mark.slow
def test_a_run_learns_and_its_checkpoints_hold_the_adapter_alone(whole: Path) -> None:
    steps = records(whole)
    assert [record["step"] for record in steps] == [0, 1, 2, 3]
    assert (
        steps[1]["policy/behaviour_mismatch"] < 1e-4
    )  # the engine samples with the adapter, as the learner scores
    assert steps[3]["policy/behaviour_mismatch"] < 1e-4
    assert 0 <= steps[1]["policy/kl"] < steps[3]["policy/kl"]
    compiled = [
        json.loads(line)["compile/count"]
        for line in (whole / "metrics.jsonl").read_text().splitlines()
    ]
    assert compiled[1] == compiled[3]
    size = sum(
        file.stat().st_size
        for file in (whole / "checkpoints/3/params").rglob("*")
        if file.is_file()
    )
    assert size < (TINY / "model.safetensors").stat().st_size / 4


@pytest.mark.slow
def test_resumed_it_gives_the_same_metrics_and_another_adapter_is_refused(
    whole: Path, tmp_path: Path
) -> None:
    workdir = tmp_path / "run"
    run(workdir, "train", "--config.train.iterations=3", "--config.checkpoint.keep=3")
    shutil.rmtree(workdir / "checkpoints/3")
    shutil.rmtree(workdir / "checkpoints/2")
    done = run(workdir, "train", "--config.checkpoint.keep=3")
    assert "continuing after iteration 1" in done.stdout
    assert records(workdir) == records(whole)
    refused = run(workdir, "train", "--config.model.lora.rank=8", status=2)
    assert "model.lora.rank=8 (there: 4)" in refused.stderr


@pytest.mark.slow
def test_the_export_is_the_merged_model_and_the_adapter(whole: Path) -> None:
    os.environ["HF_HUB_OFFLINE"] = "1"
    shape, merged = load_hf(whole / "export")
    assert sorted(path.name for path in (whole / "export/adapter").iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
    config = default_config()
    config.model.path, config.model.lora.path = str(TINY), str(whole / "export/adapter")
    config.model.lora.rank, config.model.lora.alpha = 4, 8.0
    policy = load_policy(resolve(config), make_mesh(1, 1, 1, devices=jax.devices()[:1]))
    tokens = np.arange(24, dtype=np.int32)[None]
    expected = next_tokens.logits(shape, policy.whole(policy.adapter), tokens)
    np.testing.assert_allclose(next_tokens.logits(shape, merged, tokens), expected, atol=2e-5)
    assert np.abs(expected - next_tokens.logits(shape, policy.params, tokens)).max() > 1e-3
    torch = pytest.importorskip("torch")
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(whole / "export", dtype=torch.float32)
    with torch.no_grad():
        theirs = model(torch.as_tensor(tokens.astype(np.int64))).logits.numpy()
    np.testing.assert_allclose(theirs, expected, atol=2e-4)


@pytest.mark.slow
@pytest.mark.parametrize("mode", [train, evaluate, export, sft])
def test_no_mode_takes_checkpoints_for_those_of_another_model(
    mode: ModuleType, tmp_path: Path
) -> None:
    """Shapes would fit, and the path is the same: nothing else would notice."""
    config = get_config()
    config.model.path, config.model.lora.rank = str(TINY), 4
    config.sft.episodes = 1
    config = resolve(config)
    with open_workdir(tmp_path, config):
        claim_workdir(tmp_path, config, "what was there before")
    (tmp_path / "checkpoints/1").mkdir(parents=True)
    with pytest.raises(InputError, match="not the weights that the adapter in --workdir"):
        mode.run(config, tmp_path, str(tmp_path / "out"))


def test_a_model_from_nothing_has_no_adapter(tmp_path: Path) -> None:
    refused = run(tmp_path, "sft", "--config.model.path=", status=2)
    assert "config.model.lora.rank=4: an adapter needs a model" in refused.stderr
    assert refused.stderr.count("\n") == 1


@pytest.mark.slow
def test_imitation_trains_an_adapter_and_writes_the_merged_model(tmp_path: Path) -> None:
    flags = ("--config.sft.episodes=40", "--config.sft.epochs=2", "--config.sft.minibatch=64")
    run(tmp_path / "run", "sft", *flags, f"--out={tmp_path / 'model'}")
    (_, before), (_, after) = load_hf(TINY), load_hf(tmp_path / "model")
    np.testing.assert_array_equal(before["embed"], after["embed"])
    assert np.abs(before["layers"]["up"]["kernel"] - after["layers"]["up"]["kernel"]).max() > 1e-4
    assert (tmp_path / "model/adapter/adapter_config.json").is_file()
