"""A random model of each family plays ALFWorld, learns, and is exported."""

import dataclasses
import json
import pathlib

import jax
import pytest

from gigpo_jax.main import main
from gigpo_jax.models.decoder_config import FULL, LINEAR
from gigpo_jax.models.files.save_weights import save_hf
from gigpo_jax.models.files.weights import load_hf
from gigpo_jax.models.text.tokenizer import load_tokenizer
from tests.models.shapes import SMALL, random_params


@pytest.mark.slow
@pytest.mark.parametrize("name", ["moe", "llama3", "mistral_yarn", "smollm3", "gemma3", "qwen3_5"])
def test_an_iteration_of_alfworld(
    name: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture
) -> None:
    words = load_tokenizer("models/alfworld_tiny")
    # Windows of 6 tokens overflow often enough: the text has hundreds.
    shape = dataclasses.replace(SMALL[name], vocab_size=words.vocab_size, eos_token_id=None)
    if name == "qwen3_5":
        # Several runs of layers of both kinds.
        shape = dataclasses.replace(shape, layer_types=(LINEAR, FULL) * 2)
    # Logits of larger weights would leave one action.
    params = jax.tree.map(lambda leaf: 0.3 * leaf, random_params(shape))
    save_hf(tmp_path / "model", shape, params, tokenizer=words)
    flags = [
        "--config=quickstart",
        f"--config.model.path={tmp_path / 'model'}",
        f"--workdir={tmp_path / 'run'}",
        "--config.train.iterations=1",
        "--config.train.groups=2",
        "--config.train.group_size=2",
        "--config.train.minibatch=8",
        "--config.train.save_rollouts=0",
        "--config.env.max_steps=2",
        "--config.rl.entropy_coef=0.1",
        "--config.eval.panel=",
        "--config.engine.slots=4",
        "--config.engine.dtype=float32",
        "--config.model.compute_dtype=float32",
    ]
    assert main(["--mode=train", *flags]) == 0
    lines = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    (metrics,) = [line for line in map(json.loads, lines) if "policy/loss" in line]
    assert metrics["policy/behaviour_mismatch"] < 1e-4
    assert main(["--mode=export", *flags, f"--out={tmp_path / 'trained'}"]) == 0
    trained_shape, trained = load_hf(tmp_path / "trained")
    assert trained_shape == load_hf(tmp_path / "model")[0]
    changes = jax.tree.map(lambda one, two: float(abs(one - two).max()), params, trained)
    assert min(jax.tree.leaves(changes)) > 0
    if name == "qwen3_5":
        capsys.readouterr()
        trees = ["--config.batch.share_prefixes=True", f"--workdir={tmp_path / 'trees'}"]
        assert main(["--mode=train", *flags, *trees]) == 2
        message = "config.batch.share_prefixes=True: the model has layers with states"
        assert message in capsys.readouterr().err
