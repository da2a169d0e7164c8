"""--mode=preflight on this machine's own devices, which needs no extra."""

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jax
import pytest

from gigpo_jax.config import default_config, resolve
from gigpo_jax.config.command_line import load_config
from gigpo_jax.core.errors import InputError
from gigpo_jax.core.installation import install_command
from gigpo_jax.devices.mesh import learner_mesh
from gigpo_jax.main import main
from gigpo_jax.models import decoder
from gigpo_jax.models.files.write_config import config_json
from gigpo_jax.models.vision.vision_config import preprocessor_json
from gigpo_jax.tools.preflight import learner_programs
from gigpo_jax.tools.preflight.learner_programs import compile_learner
from gigpo_jax.tools.preflight.run import check_fit
from gigpo_jax.tools.preflight.shapes import model_shape, run_arrays
from gigpo_jax.tools.preflight.targets import TARGETS
from tests.models.shapes import VISION3

SHAPE = decoder.DecoderConfig(512, 64, 128, 3, 4, 2, 16)
EXAMPLE = "--config=tests/configs/example.py"
SLOTS, LENGTH, F32 = 8, 48 + 10, 4  # of the config


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder as far as a preflight reads it."""
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text(json.dumps(config_json(SHAPE, "float32")))
    return folder


def preflight(model: Path, target: str, *flags: str) -> list[str]:
    return [
        EXAMPLE,
        "--mode=preflight",
        f"--target={target}",
        f"--config.model.path={model}",
        *flags,
    ]


def test_one_device(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What stays in memory and what a program computes, against sums by hand."""
    out = tmp_path / "found.json"
    flags = (
        f"--out={out}",
        "--config.engine.dtype=bfloat16",
        "--config.rl.algorithm=ppo",
        "--config.rl.kl_coef=0.01",
    )
    assert main(preflight(model, "cpu", *flags)) == 0
    found = json.loads(out.read_text())
    count = decoder.param_count(SHAPE)
    kept = found["resident"]
    assert kept["parameters"] == kept["reference policy"] == count * F32
    assert kept["optimizer"] == pytest.approx(2 * count * F32, abs=16)
    head = SHAPE.hidden_size + 1
    assert kept["critic"] == pytest.approx(3 * (count + head) * F32, abs=16)
    assert kept["engine's weights"] == pytest.approx(count * 2, abs=1024)
    cache = 2 * SHAPE.num_layers * SLOTS * SHAPE.num_kv_heads * LENGTH * SHAPE.head_dim * 2
    assert cache <= kept["KV cache"] < cache + 2048  # and the slots' settings
    programs = found["programs"]
    assert set(programs) == {
        "update",
        "score",
        "critic",
        "values",
        "hand-over",
        "layers apart",
        "prefill",
        "decode",
    }
    matrices = count - SHAPE.vocab_size * SHAPE.hidden_size  # nearly: with the biases and scales
    tokens = programs["score"]["trips"][0] * 4 * 64
    # Forward once for a score; forward, and twice as much backward, for an update.
    assert (
        2 * tokens * matrices * 0.95
        < programs["score"]["operations"]
        < 2.6 * programs["update"]["operations"] / 6
    )
    assert 6 * tokens * matrices * 0.95 < programs["update"]["operations"] < 12 * tokens * count
    # Without the products with the vocabulary.
    assert 0.5 < programs["critic"]["operations"] / programs["update"]["operations"] < 1
    assert 0.5 < programs["values"]["operations"] / programs["score"]["operations"] < 1
    left = found["memory"] - sum(kept.values()) - programs["decode"]["temporaries"]
    assert programs["decode"]["left"] <= left
    assert all(math.isfinite(seconds) and seconds > 0 for seconds in found["iteration"].values())
    shown = capsys.readouterr().out
    assert "cpu: 1 devices of" in shown
    assert "an iteration takes at least" in shown


@pytest.mark.parametrize(
    ("max_staleness", "key"), [(0, r"batch\.rows=4"), (1, r"engine\.slots=128")]
)
def test_the_key_of_a_part_that_is_not_in_memory_is_not_named(max_staleness: int, key: str) -> None:
    """The cache is the largest part, but the program that does not fit is an update."""
    config = default_config()
    config.train.max_staleness = max_staleness
    config = resolve(config)
    programs = {"update": {"left": -1, "temporaries": 2}, "decode": {"left": 0, "temporaries": 1}}
    with pytest.raises(InputError, match=rf"^config\.{key}: with the program 'update' "):
        check_fit(
            config,
            {"target": "cpu", "resident": {"parameters": 1, "KV cache": 3}, "programs": programs},
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("minibatch_by", "sharing"),
    [("step", {"score", "values"}), ("group", {"update", "score", "critic", "values"})],
)
def test_texts_are_trees_in_the_programs_in_which_a_run_has_them(
    model: Path, monkeypatch: pytest.MonkeyPatch, minibatch_by: str, sharing: set[str]
) -> None:
    """Lowered alone: what the compiler makes of trees is the matter of other tests."""
    inputs: dict[str, set[tuple[int, ...]]] = {}

    def record_inputs(name: str, lowered: jax.stages.Lowered) -> tuple[None, float]:
        inputs[name] = {leaf.shape[1:] for leaf in jax.tree.leaves(lowered.args_info)}
        return None, 0.0

    monkeypatch.setattr(learner_programs, "compile_program", record_inputs)
    flags = (
        f"--config.model.path={model}",
        "--config.batch.share_prefixes=True",
        f"--config.train.minibatch_by={minibatch_by}",
        "--config.rl.algorithm=ppo",
    )
    config = resolve(load_config(EXAMPLE.removeprefix("--config="), flags))
    mesh = learner_mesh(config, jax.devices()[:1])
    shape = model_shape(config)
    list(compile_learner(config, shape, mesh, run_arrays(config, shape, mesh), None))
    rows, tokens = config.batch.rows, config.batch.row_length
    assert set(inputs) == {"update", "score", "critic", "values"}
    assert {name for name, shapes in inputs.items() if (rows, 2, tokens) in shapes} == sharing


@pytest.mark.slow
def test_a_model_that_reads_images(tmp_path: Path) -> None:
    """Its images come from the environment's first observation: one of 100 patches."""
    shape = replace(SHAPE, model_type="qwen3", vision=VISION3)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(preprocessor_json(VISION3)))
    (tmp_path / "config.json").write_text(json.dumps(config_json(shape, "float32")))
    out = tmp_path / "found.json"
    flags = preflight(tmp_path, "cpu", f"--out={out}")[1:]
    assert main(["--config=tests/configs/pictures.py", *flags]) == 0
    found = json.loads(out.read_text())["programs"]
    assert set(found) == {"update", "score", "prefill", "decode", "encode"}
    tower = sum(leaf.size for leaf in jax.tree.leaves(decoder.abstract_params(shape)["vision"]))
    least = (
        2 * 4 * 100 * tower * 0.5
    )  # 4 images; half of the kernel of patches and the mergers' share count less
    assert least < found["encode"]["operations"] < 8 * least


@pytest.mark.slow
@pytest.mark.parametrize("own", [0, 4])
def test_eight_devices(own: int, model: Path, tmp_path: Path) -> None:
    """Parameters are split, so an update gathers them and adds gradients up; in a process with
    eight devices.
    """
    out = tmp_path / "found.json"
    flags = (
        f"--out={out}",
        f"--config.mesh.fsdp={8 - own}",
        "--config.batch.rows=8",
        "--config.rl.algorithm=serl",
    )
    flags += (f"--config.engine.devices={own}", f"--config.train.max_staleness={own // 2}")
    command = [sys.executable, "-m", "gigpo_jax", "preflight", *preflight(model, "cpux8", *flags)]
    command.remove("--mode=preflight")
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    assert found["devices"] == 8
    kept = found["resident"]
    count = decoder.param_count(SHAPE)
    assert kept["parameters"] == pytest.approx(count * F32 / (8 - own), rel=0.02)
    assert kept["teacher"] == kept["parameters"]
    assert kept["older policies"] == own // 2 * kept["parameters"]
    assert kept["engine's weights"] == pytest.approx(max(own // 2, 1) * count * F32, rel=0.01)
    of_engine = kept["engine's weights"] + kept["KV cache"]
    for name, beside in (
        ("decode", of_engine if own else sum(kept.values())),
        ("score", sum(kept.values()) - of_engine),
    ):
        one = found["programs"][name]
        made = one["outputs"] - one["aliased"]
        assert one["left"] == found["memory"] - beside - one["temporaries"] - made
    assert done.stdout.count("in memory, GiB a device: ") == (2 if own else 1)
    sent = found["programs"]["update"]["collectives"]
    assert sent["all-gather"] > decoder.param_count(SHAPE) * F32 * 0.5
    assert "update sends: " in done.stdout


@pytest.mark.slow
def test_a_server_of_eight_devices_has_its_weights_once(model: Path, tmp_path: Path) -> None:
    """Whatever mesh the learner's config has; nothing of training is there."""
    out = tmp_path / "found.json"
    flags = (f"--out={out}", "--server", "--config.mesh.fsdp=16", "--config.engine.tensor=2")
    command = [sys.executable, "-m", "gigpo_jax.main", *preflight(model, "cpux8", *flags)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    assert set(found["programs"]) == {"prefill", "decode"}
    kept = {name: size for name, size in found["resident"].items() if size}
    assert set(kept) == {"parameters", "KV cache"}
    assert kept["parameters"] == pytest.approx(decoder.param_count(SHAPE) * F32 / 2, rel=0.02)
    decode = found["programs"]["decode"]
    made = decode["outputs"] - decode["aliased"]
    assert decode["left"] == found["memory"] - sum(kept.values()) - decode["temporaries"] - made


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--target=v5e-9"], f"--target=v5e-9: no such target; choose one of {', '.join(TARGETS)}"),
        ([], "--target: no such target"),
        (["--target=v6e-8"], install_command("preflight-tpu")),
        (["--target=h100x8"], install_command("preflight-gpu")),
        (
            ["--target=cpu", "--config.model.path=/no/Qwen2.5-2B"],
            "or one of Qwen2.5-0.5B-Instruct, ",
        ),
        (
            ["--target=cpu", "--config.model.lora.rank=2", "--config.model.lora.vision=True"],
            "no vision tower",
        ),
        (
            ["--target=cpu", "--config.mesh.fsdp=3"],
            "config.mesh: data=-1 x fsdp=3 x tensor=1 does not fit 1 devices",
        ),
    ],
)
def test_bad_input(
    flags: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "importlib.util.find_spec",
        lambda name: None if name != "jax" else sys.modules["jax"].__spec__,
    )
    assert (
        main([EXAMPLE, "--mode=preflight", "--config.model.path=Qwen2.5-0.5B-Instruct", *flags])
        == 2
    )
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert message in error


@pytest.mark.slow
def test_what_does_not_fit_ends_with_the_fix(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    small = replace(TARGETS["cpu"], chip=replace(TARGETS["cpu"].chip, memory=2**20))
    monkeypatch.setitem(TARGETS, "cpu", small)
    assert (
        main(preflight(model, "cpu", "--config.engine.slots=512", "--config.rl.kl_coef=0.0")) == 2
    )
    printed = capsys.readouterr()
    assert "config.engine.slots=512: with the program '" in printed.err
    assert "fewer batch.rows or engine.slots" in printed.err
    assert "GiB a device" in printed.out
