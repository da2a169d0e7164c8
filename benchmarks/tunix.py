"""Speed of the update and of the in-process engine against tunix, in one process.

    VENV/bin/python -m benchmarks.tunix [tiny:dense tiny:agent w512:dense w512:agent ...]
                                        [--turns 5]

VENV is a virtual environment with google-tunix; nothing else has to be installed there. Both sides
start from the same random Qwen2 weights and take turns, two of which do not count; the result is
the median of the ratios of neighbouring turns, above 1 where we are faster. Writes its jobs into
benchmarks/results/tunix.json, with the first results of both.

* dense, agent: one update on the batches of train_step.py, float32, AdamW with a gradient clip, no
  rematerialisation; tunix's `rl.Trainer`, GRPO loss, clips as ours, no KL term. "dense" has no
  padding, and tunix gets all rows at once. For "agent" it gets padded rows in the microbatches of
  PyTorch (only TPUs give its packing a causal mask); we pack.
* float32, bfloat16: 32 requests of 256 + 64 tokens at once, temperature 1, nothing stops; tunix's
  `Sampler`.
"""

import argparse
import asyncio
import dataclasses
import json
import os
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx
from tunix.generate.sampler import CacheConfig, Sampler
from tunix.models.qwen2.model import ModelConfig
from tunix.models.qwen2.params import create_model_from_safe_tensors
from tunix.rl import algo_core, common, trainer
from tunix.rl.grpo.grpo_learner import GRPOConfig
from tunix.sft.peft_trainer import TrainingConfig

from benchmarks.train_step import SHAPES, agent_samples, dense_samples, jax_step
from gigpo_jax.engines.base import SamplingParams
from gigpo_jax.engines.jax.jax_engine import EngineSettings, JaxEngine
from gigpo_jax.models import decoder
from gigpo_jax.models.files.save_weights import save_hf
from gigpo_jax.models.published import PUBLISHED

RESULT = Path(__file__).parent / "results" / "tunix.json"
JOBS = ("tiny:dense", "tiny:agent", "w512:dense", "w512:agent", "tiny:float32")
SIDES = ("gigpo_jax", "tunix")
REQUESTS = 32
PROMPT = 256
RESPONSE = 64
TINY = dataclasses.replace(
    SHAPES["tiny"], model=dataclasses.replace(SHAPES["tiny"].model, vocab_size=4096)
)


def tunix_model(shape: decoder.DecoderConfig, params: decoder.Params) -> nnx.Module:
    """Loads the same weights into tunix's model, through a file."""
    dtype = params["embed"].dtype
    config = ModelConfig(
        shape.num_layers,
        shape.vocab_size,
        shape.hidden_size,
        shape.intermediate_size,
        shape.num_heads,
        shape.head_dim,
        shape.num_kv_heads,
        shape.rope_theta,
        shape.rms_norm_eps,
        shape.tie_word_embeddings,
        dtype=dtype,
        param_dtype=dtype,
    )
    with tempfile.TemporaryDirectory() as folder:
        save_hf(f"{folder}/model", shape, params)
        return create_model_from_safe_tensors(f"{folder}/model", config, dtype=dtype)


def time_in_turns(
    run_ours: Callable[[], float], run_tunix: Callable[[], float], tokens: int, turns: int
) -> dict[str, object]:
    """Times both sides; `first_result` has the results of the first calls."""
    seconds = np.zeros((turns + 2, 2, 2))  # [turn, side, wall or CPU]
    results = np.zeros((turns + 2, 2))
    for turn, side in np.ndindex(results.shape):
        start = np.array((time.perf_counter(), time.process_time()))
        results[turn, side] = (run_ours, run_tunix)[side]()
        seconds[turn, side] = np.array((time.perf_counter(), time.process_time())) - start
    ratios = (seconds[2:, 1] / seconds[2:, 0]).round(2)
    wall_ratio, cpu_ratio = np.median(ratios, axis=0).tolist()
    speeds = (tokens / np.median(seconds[2:, :, 0], axis=0)).round(1).tolist()
    return {
        "tokens_per_s": dict(zip(SIDES, speeds)),
        "first_result": dict(zip(SIDES, results[0].tolist())),
        "ratio": wall_ratio,
        "ratio_cpu_time": cpu_ratio,
        "ratios": ratios[:, 0].tolist(),
    }


def compare_sampling(name: str, dtype: str, turns: int) -> dict[str, object]:
    """Times both samplers; their results are mean log-probabilities of the tokens."""
    config = TINY.model if name == "tiny" else PUBLISHED[name]
    params = decoder.init_params(config, jax.random.key(0), dtype)
    length = PROMPT + RESPONSE
    prompts = np.random.default_rng(1).integers(0, config.vocab_size, (REQUESTS, PROMPT), np.int32)
    tokenizer = SimpleNamespace(
        encode=lambda row: prompts[int(row)].tolist(), decode=lambda _: "", bos_id=lambda: None
    )
    tokenizer.eos_id = tokenizer.pad_id = lambda: config.vocab_size  # not a token
    cache = CacheConfig(length, config.num_layers, config.num_kv_heads, config.head_dim)
    sampler = Sampler(tunix_model(config, params), tokenizer, cache)
    rows = [str(row) for row in range(REQUESTS)]
    options: dict[str, Any] = {
        "temperature": 1.0,
        "top_p": 1.0,
        "return_logprobs": True,
        "max_prompt_length": PROMPT,
    }
    settings = EngineSettings(
        slots=REQUESTS,
        max_length=length,
        prefill_buckets=(PROMPT,),
        prefill_rows=(8,),
        decode_steps=RESPONSE,
    )
    with JaxEngine(config, params, settings) as engine:
        engine.warmup()

        async def generate_all() -> float:
            calls = []
            for index, prompt in enumerate(prompts):
                sampling = SamplingParams(max_tokens=RESPONSE, key=(0, index))
                calls.append(engine.generate(prompt, sampling))
            completions = await asyncio.gather(*calls)
            return float(np.mean([completion.logprobs for completion in completions]))

        def run_ours() -> float:
            return asyncio.run(generate_all())

        def run_tunix() -> float:
            return np.mean(sampler(rows, RESPONSE, **options).logprobs)

        return time_in_turns(run_ours, run_tunix, REQUESTS * RESPONSE, turns)


def compare_training(name: str, kind: str, turns: int) -> dict[str, object]:
    """Times both updates; their results are losses, tunix's the mean over its microbatches."""
    shape = TINY if name == "tiny" else SHAPES[name]
    samples = dense_samples(shape) if kind == "dense" else agent_samples(shape)
    pieces = 1 if kind == "dense" else len(samples) // shape.torch_rows

    def pad_rows(name: str, left: bool = False) -> np.ndarray:
        values = [getattr(sample, name) for sample in samples]
        width = max(map(len, values))
        rows = []
        for row in values:
            missing = width - len(row)
            padding = (missing, 0) if left else (0, missing)
            rows.append(np.pad(row, padding, constant_values=-1))
        return np.stack(rows)

    prompts = pad_rows("prompt_tokens", left=True)
    responses = pad_rows("response_tokens")
    logprobs = pad_rows("logprobs")
    advantages = np.array([sample.advantage for sample in samples], np.float32)
    columns = (prompts, prompts != -1, responses, responses != -1, advantages, logprobs)
    batches = []
    for piece in zip(*(np.split(column, pieces) for column in columns)):
        batches.append(common.TrainExample(*piece[:5], None, piece[5]))
    algorithm = GRPOConfig(beta=0.0, epsilon=0.2, loss_agg_mode="token-mean")
    algorithm.temperature = 1.0
    algorithm.epsilon_c = 3.0
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-6, weight_decay=0.01))
    settings = TrainingConfig(
        eval_every_n_steps=1, gradient_accumulation_steps=pieces if pieces > 1 else None
    )
    model = tunix_model(shape.model, decoder.init_params(shape.model, jax.random.key(0)))
    actor = trainer.Trainer(model, optimizer, settings, dict)
    losses: list[Any] = []
    actor.with_loss_fn(
        lambda model, x: algo_core.grpo_loss_fn(model, x, algorithm, pad_id=-1, eos_id=-1),
        has_aux=True,
    )
    actor.with_gen_model_input_fn(lambda x: {"x": x})
    actor.is_managed_externally = True
    actor._post_process_train_step = lambda aux: losses.append(aux["pg_loss"])

    def run_tunix() -> float:
        losses.clear()
        actor.train(batches)
        jax.block_until_ready(nnx.state(model))
        return float(np.mean(losses))

    tokens = sum(len(sample.prompt_tokens) + len(sample.response_tokens) for sample in samples)
    return time_in_turns(jax_step(shape, samples)[0], run_tunix, tokens, turns)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("jobs", nargs="*", default=JOBS, help="shape:kind, also 0.5b:float32")
    parser.add_argument("--turns", type=int, default=5)
    args = parser.parse_args()
    record = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    versions = {name: version(name) for name in ("google-tunix", "jax", "flax", "optax")}
    for job in args.jobs:
        shape, kind = job.split(":")
        compare = compare_training if kind in ("dense", "agent") else compare_sampling
        record[job] = compare(shape, kind, args.turns)
        record[job] |= {
            "versions": versions,
            "cores": os.cpu_count(),
            "load_average": os.getloadavg(),
        }
        print(job, json.dumps(record[job]), flush=True)
        RESULT.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
