"""One iteration of GiGPO on pictures with a tiny Qwen3-VL of random weights."""

import json
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest

from gigpo_jax.main import main
from gigpo_jax.models import load_hf
from gigpo_jax.models.files.save_weights import save_hf
from gigpo_jax.models.text.tokenizer import load_tokenizer
from gigpo_jax.models.vision.vision_config import IMAGE_TOKENS
from tests.models.shapes import VISION3, VL3, random_params

FLAGS = (
    "--config.train.iterations=1",
    "--config.train.groups=2",
    "--config.train.group_size=2",
    "--config.train.minibatch=8",
    "--config.train.save_rollouts=0",
    "--config.env.max_steps=2",
    "--config.env.history=0",
    # Random episodes may be equally good, and then nothing else has a gradient.
    "--config.rl.entropy_coef=0.1",
)


@pytest.mark.long
def test_an_iteration_on_pictures_of_sokoban(tmp_path: Path) -> None:
    words = load_tokenizer("models/sokoban_tiny")
    start, image, end = words.encode("".join(IMAGE_TOKENS))
    vision = replace(VISION3, start_token=start, image_token=image, end_token=end)
    shape = replace(VL3, vocab_size=words.vocab_size, vision=vision)
    # Logits of such large weights would leave one action.
    params = jax.tree.map(lambda leaf: 0.3 * leaf, random_params(shape))
    save_hf(tmp_path / "model", shape, params, tokenizer=words)
    config = ("--config=tests/configs/pictures.py", f"--config.model.path={tmp_path / 'model'}")
    flags = [*config, f"--workdir={tmp_path / 'run'}", *FLAGS]
    assert main(["--mode=train", *flags]) == 0
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    (metrics,) = [line for line in lines if "policy/loss" in line]
    assert metrics["policy/behaviour_mismatch"] < 1e-4
    assert metrics["batch/steps"] == 8
    assert main(["--mode=export", *flags, f"--out={tmp_path / 'trained'}"]) == 0
    trained_shape, trained = load_hf(tmp_path / "trained")
    assert trained_shape == shape
    for name in ("positions", "deep_out", "merger_in"):
        leaves = zip(*(jax.tree.leaves(tree["vision"][name]) for tree in (params, trained)))
        assert any(np.abs(np.asarray(after) - before).max() > 0 for before, after in leaves)
