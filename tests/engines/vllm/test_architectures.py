"""Real servers of other models than Qwen2.5 give the learner's log-probabilities and the greedy
texts of the engine in the process, before and after a push.
"""

import pathlib

import jax
import numpy as np
import pytest

from gigpo_jax.models import lora
from gigpo_jax.models.decoder_config import FULL, LINEAR, SLIDING, UNROTATED, DecoderConfig
from gigpo_jax.models.delta_config import DeltaConfig
from gigpo_jax.models.expert_config import ExpertConfig
from gigpo_jax.models.files.checksum import folder_checksum
from gigpo_jax.models.files.save_weights import save_hf
from gigpo_jax.models.lora import LoraConfig
from gigpo_jax.models.rope_scaling import LinearScaling, RopeScaling, YarnScaling
from gigpo_jax.models.text.tokenizer import load_tokenizer
from tests.engines.vllm import serving
from tests.models.shapes import random_params

pytestmark = [pytest.mark.vllm, pytest.mark.usefixtures("compiled_once")]

LLAMA = {"rope_scaling": RopeScaling(8.0, 1.0, 4.0, 16)}
LINEARLY = {"rope_scaling": LinearScaling(4.0)}
YARN = {"rope_scaling": YarnScaling(8.0, 16)}  # 128 tokens: more than `serving.MAX_LENGTH`
EXPERTS = {"experts": ExpertConfig(4, 2, 32)}
# An embedding with more rows than there are tokens: the server must not sample them either.
TOKENS = load_tokenizer(serving.TINY).vocab_size
PADDED = {"vocab_size": TOKENS + 40, "num_tokens": TOKENS}
# Prompts have more tokens than the window.
GEMMA = {"layer_types": (SLIDING, FULL), "sliding_window": 8, "query_scalar": 24}
STATES = {"layer_types": (LINEAR, FULL), "rotary_dim": 16, "delta": DeltaConfig(2, 4, 32, 32)}
STATES_FAIL = pytest.mark.xfail(
    reason="vLLM: Chunked prefill is required for mamba cache mode 'align'"
)
CONFIG = LoraConfig(4, 8.0)


@pytest.mark.parametrize(
    ("kind", "more", "adapter"),
    [
        ("qwen3", {}, False),
        ("qwen3", {}, True),
        ("qwen3_moe", EXPERTS, False),
        ("llama", LLAMA, False),
        ("llama", LINEARLY, False),
        ("llama", YARN, False),
        ("mistral", {}, False),
        ("qwen3", PADDED, False),
        ("smollm3", {"layer_types": (FULL, UNROTATED)}, False),
        ("gemma3_text", GEMMA, False),
        pytest.param("qwen3_5_text", STATES, False, marks=STATES_FAIL),
    ],
    ids=[
        "qwen3",
        "qwen3-adapter",
        "experts",
        "llama",
        "llama-linear",
        "llama-yarn",
        "mistral",
        "padded",
        "smollm3",
        "gemma3",
        "qwen3_5",
    ],
)
def test_log_probabilities_are_the_learners_before_and_after_a_push(
    kind: str, more: dict, adapter: bool, tmp_path: pathlib.Path
) -> None:
    words = load_tokenizer(serving.TINY)
    rows = {"vocab_size": TOKENS} | more
    shape = DecoderConfig(
        hidden_size=64,
        intermediate_size=96,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=32,
        model_type=kind,
        **rows,
    )
    started = random_params(shape, 0)
    save_hf(tmp_path / "model", shape, started, tokenizer=words)
    merged = [started, random_params(shape, 1)]  # what the policy is after each push
    pushed = merged
    settings = {"weights_dir": tmp_path / "weights"}
    if adapter:
        start = lora.init_adapter(shape, CONFIG, jax.random.key(0))
        adapters = [start, serving.shaken(start, 1, 0.05)]
        pushed = [lora.attach_adapter(started, each, CONFIG.scale) for each in adapters]
        copies = [jax.tree.map(lambda x: x.copy(), started) for _ in adapters]
        merged = [
            lora.merge_adapter(copy, each, CONFIG.scale)
            for copy, each in zip(copies, adapters, strict=True)
        ]
        settings["base"] = folder_checksum(tmp_path / "model")
    prompts = [words.encode_chat(f"you see a {place} 1.") for place in ("desk", "drawer", "shelf")]
    ranks = {"lora_rank": CONFIG.rank} if adapter else {}
    server = serving.start(tmp_path / "model", tmp_path / "logs", tmp_path / "weights", **ranks)
    try:
        serving.wait_up(server)
        with (
            serving.engine(shape, pushed[0], words, urls=(server.url,), **settings) as engine,
            serving.in_process(shape, merged[0], words) as ours,
        ):
            for version, params in enumerate(merged):
                if version:
                    engine.update_weights(pushed[version], version)
                    ours.update_weights(params, version)
                greedy = [serving.ask(one, prompts, temperature=0.0) for one in (engine, ours)]
                for theirs, here in zip(*greedy, strict=True):
                    np.testing.assert_array_equal(theirs.tokens, here.tokens)
                for prompt, response in zip(prompts, serving.ask(engine, prompts), strict=True):
                    assert response.version == version
                    assert response.tokens.max() < TOKENS
                    scores = serving.learner_logprobs(shape, params, prompt, response.tokens, 1.0)
                    np.testing.assert_allclose(response.logprobs, scores, atol=1e-4)
    finally:
        server.stop()
