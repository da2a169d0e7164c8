"""The update and the in-process engine against tunix's actor trainer and sampler: tokens a second, in one process.

    VENV/bin/python -m benchmarks.tunix [tiny:dense tiny:agent w512:dense w512:agent ...] [--turns 5]

VENV is a virtual environment with google-tunix; nothing else has to be installed there. Both sides start from the same
random Qwen2 weights and take turns, two of which do not count; the median of the ratios of neighbouring turns is
quoted, above 1 where we are faster. Writes its jobs into benchmarks/results/tunix.json, with the first results of both.

* dense, agent: one update on the batches of train_step.py, float32, AdamW with a gradient clip, no rematerialisation;
  tunix's `rl.Trainer`, GRPO loss, clips as ours, no KL term. "dense" has no padding, and tunix gets all rows at once.
  For "agent" it gets padded rows in the microbatches of PyTorch (only TPUs give its packing a causal mask); we pack.
* float32, bfloat16: 32 requests of 256 + 64 tokens at once, temperature 1, nothing stops; tunix's `Sampler`.
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
from gigpo_jax.models import qwen2
from gigpo_jax.models.weights import save_hf
from gigpo_jax.sampling.base import SamplingParams
from gigpo_jax.sampling.jax_engine import EngineSettings, JaxEngine

RESULT = Path(__file__).parent / "results" / "tunix.json"
JOBS = ("tiny:dense", "tiny:agent", "w512:dense", "w512:agent", "tiny:float32")
SIDES = ("gigpo_jax", "tunix")
REQUESTS, PROMPT, RESPONSE = 32, 256, 64
TINY = dataclasses.replace(SHAPES["tiny"], model=dataclasses.replace(SHAPES["tiny"].model, vocab_size=4096))


def tunix_model(c: qwen2.Qwen2Config, params: qwen2.Params) -> nnx.Module:
    """The same weights in tunix's model, by way of a file."""
    dtype = params["embed"].dtype
    sizes = (c.num_layers, c.vocab_size, c.hidden_size, c.intermediate_size, c.num_heads, c.head_dim, c.num_kv_heads)
    config = ModelConfig(*sizes, c.rope_theta, c.rms_norm_eps, c.tie_word_embeddings, dtype=dtype, param_dtype=dtype)
    with tempfile.TemporaryDirectory() as folder:
        save_hf(f"{folder}/model", c, params)
        return create_model_from_safe_tensors(f"{folder}/model", config, dtype=dtype)


def in_turns(ours: Callable[[], float], theirs: Callable[[], float], tokens: int, turns: int) -> dict[str, object]:
    """Times both sides; `first_result` is what the first calls returned."""
    seconds, results = np.zeros((turns + 2, 2, 2)), np.zeros((turns + 2, 2))
    for turn, side in np.ndindex(results.shape):
        before = np.array((time.perf_counter(), time.process_time()))
        results[turn, side] = (ours, theirs)[side]()
        seconds[turn, side] = np.array((time.perf_counter(), time.process_time())) - before
    ratios = (seconds[2:, 1] / seconds[2:, 0]).round(2)
    return {
        "tokens_per_s": dict(zip(SIDES, (tokens / np.median(seconds[2:, :, 0], axis=0)).round(1).tolist())),
        "first_result": dict(zip(SIDES, results[0].tolist())),
        **dict(zip(("ratio", "ratio_cpu_time"), np.median(ratios, axis=0).tolist())),
        "ratios": ratios[:, 0].tolist(),
    }


def sampling(name: str, dtype: str, turns: int) -> dict[str, object]:
    """Both samplers; their calls return the mean log-probability of the tokens."""
    config = TINY.model if name == "tiny" else qwen2.PUBLISHED[name]
    params, length = qwen2.init(config, jax.random.key(0), dtype), PROMPT + RESPONSE
    prompts = np.random.default_rng(1).integers(0, config.vocab_size, (REQUESTS, PROMPT), np.int32)
    tokenizer = SimpleNamespace(encode=lambda row: prompts[int(row)].tolist(), decode=lambda _: "", bos_id=lambda: None)
    tokenizer.eos_id = tokenizer.pad_id = lambda: config.vocab_size  # not a token
    cache = CacheConfig(length, config.num_layers, config.num_kv_heads, config.head_dim)
    sampler, rows = Sampler(tunix_model(config, params), tokenizer, cache), [str(row) for row in range(REQUESTS)]
    how = {"temperature": 1.0, "top_p": 1.0, "return_logprobs": True, "max_prompt_length": PROMPT}
    shapes: dict[str, Any] = {"prefill_buckets": (PROMPT,), "prefill_rows": (8,), "decode_steps": RESPONSE}
    with JaxEngine(config, params, EngineSettings(slots=REQUESTS, max_length=length, **shapes)) as engine:
        engine.warmup()

        async def together() -> float:
            calls = (engine.generate(p, SamplingParams(max_tokens=RESPONSE, key=(0, i))) for i, p in enumerate(prompts))
            return float(np.mean([each.logprobs for each in await asyncio.gather(*calls)]))

        ours, theirs = lambda: asyncio.run(together()), lambda: np.mean(sampler(rows, RESPONSE, **how).logprobs)
        return in_turns(ours, theirs, REQUESTS * RESPONSE, turns)


def training(name: str, kind: str, turns: int) -> dict[str, object]:
    """Both updates; their calls return the loss, tunix's the mean over its microbatches."""
    shape = TINY if name == "tiny" else SHAPES[name]
    samples = dense_samples(shape) if kind == "dense" else agent_samples(shape)
    pieces = 1 if kind == "dense" else len(samples) // shape.torch_rows

    def padded(name: str, left: bool = False) -> np.ndarray:
        values = [getattr(s, name) for s in samples]
        spare = [max(map(len, values)) - len(x) for x in values]
        return np.stack([np.pad(x, (n, 0) if left else (0, n), constant_values=-1) for x, n in zip(values, spare)])

    prompts, responses, old = padded("prompt_tokens", left=True), padded("response_tokens"), padded("logprobs")
    advantages = np.array([s.advantage for s in samples], np.float32)
    columns = (prompts, prompts != -1, responses, responses != -1, advantages, old)
    batches = [common.TrainExample(*x[:5], None, x[5]) for x in zip(*(np.split(c, pieces) for c in columns))]
    algorithm = GRPOConfig(beta=0.0, epsilon=0.2, loss_agg_mode="token-mean")
    algorithm.temperature, algorithm.epsilon_c = 1.0, 3.0
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-6, weight_decay=0.01))
    settings = TrainingConfig(eval_every_n_steps=1, gradient_accumulation_steps=pieces if pieces > 1 else None)
    model = tunix_model(shape.model, qwen2.init(shape.model, jax.random.key(0)))
    actor, losses = trainer.Trainer(model, optimizer, settings, dict), []
    actor.with_loss_fn(lambda model, x: algo_core.grpo_loss_fn(model, x, algorithm, pad_id=-1, eos_id=-1), has_aux=True)
    actor.with_gen_model_input_fn(lambda x: {"x": x})
    actor.is_managed_externally, actor._post_process_train_step = True, lambda aux: losses.append(aux["pg_loss"])

    def theirs() -> float:
        losses.clear()
        actor.train(batches)
        jax.block_until_ready(nnx.state(model))
        return float(np.mean(losses))

    tokens = sum(len(s.prompt_tokens) + len(s.response_tokens) for s in samples)
    return in_turns(jax_step(shape, samples)[0], theirs, tokens, turns)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("jobs", nargs="*", default=JOBS, help="shape:kind, also 0.5b:float32")
    parser.add_argument("--turns", type=int, default=5)
    args = parser.parse_args()
    record = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    versions = {name: version(name) for name in ("google-tunix", "jax", "flax", "optax")}
    for job in args.jobs:
        shape, kind = job.split(":")
        record[job] = (training if kind in ("dense", "agent") else sampling)(shape, kind, args.turns)
        record[job] |= {"versions": versions, "cores": os.cpu_count(), "load_average": os.getloadavg()}
        print(job, json.dumps(record[job]), flush=True)
        RESULT.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
