"""What TPU compilers make of the programs; needs libtpu (make test-preflight)."""

import json
from pathlib import Path
from typing import Any

import pytest

from gigpo_jax.main import main
from gigpo_jax.models import qwen2
from gigpo_jax.models.hf_config import config_json

pytestmark = pytest.mark.preflight
SHAPE = qwen2.Qwen2Config(2048, 256, 512, 32, 4, 2, 128)
TOKENS = 1024  # of a row


def preflight(folder: Path, target: str, *flags: str) -> dict[str, Any]:
    (folder / "config.json").write_text(json.dumps(config_json(SHAPE, "float32")))
    flags = (f"--config.model.path={folder}", f"--out={folder / 'found.json'}", *flags)
    sizes = ("--config.batch.rows=8", f"--config.batch.row_length={TOKENS}", "--config.engine.slots=16")
    lengths = ("--config.sampling.max_prompt_tokens=768", "--config.sampling.max_response_tokens=256")
    assert (
        main(["--config=configs/alfworld.py:1.5b", "--mode=preflight", f"--target={target}", *sizes, *lengths, *flags])
        == 0
    )
    return json.loads((folder / "found.json").read_text())


def test_one_chip_copies_no_cache_and_holds_no_scores(tmp_path: Path) -> None:
    found = preflight(tmp_path, "v6e-1")
    decode, cache = found["programs"]["decode"], found["resident"]["KV cache"]
    assert decode["temporaries"] < 0.05 * cache
    assert not [copy for copy in decode["copies"] if copy["of"] == "KV cache"]
    scores = 8 * SHAPE.num_heads * TOKENS * TOKENS * 4
    assert found["programs"]["score"]["temporaries"] < scores


def test_eight_chips_share_the_slots_and_send_nothing_while_decoding(tmp_path: Path) -> None:
    found = preflight(tmp_path, "v5e-8", "--config.mesh.fsdp=8")
    # libtpu's topology has two hosts of four chips, and each host spreads 16 slots over its own.
    cache = 2 * SHAPE.num_layers * 4 * SHAPE.num_kv_heads * 1024 * SHAPE.head_dim * 2  # bytes of four slots
    assert found["resident"]["KV cache"] == pytest.approx(cache, rel=0.01)
    assert found["programs"]["decode"]["collectives"] == {}
    assert found["programs"]["update"]["collectives"]["all-gather"] > 0
    assert found["programs"]["decode"]["temporaries"] < 0.05 * cache
