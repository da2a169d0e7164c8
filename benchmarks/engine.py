"""Speed of the in-process engine against `generate` of transformers, with the same weights.

    python benchmarks/engine.py [--dtypes float32 bfloat16] [--rounds 2]
                                [--requests 32] [--prompt 256] [--response 64]
    python benchmarks/engine.py --turns 5 20 50 [--episodes 4] [--message 40] [--response 64]

Random weights of the Qwen2.5-0.5B shape; both sides read the same prompts and sample at temperature
1 without stopping. The two take turns (A B A B ...) and the medians count. CPU seconds count the
whole process, all threads: on a busy machine they tell more than the clock. Writes
benchmarks/results/engine.json.

With `--turns` the engine is compared with itself, on conversations of so many turns: with slots
that keep responses, with responses that are read again in chunks, and with whole prompts in
buckets. The model has random weights too, 256 wide with 4 layers, in float32. Messages are random
tokens, and there is a slot for each episode. Writes benchmarks/results/conversations.json.
"""

import argparse
import asyncio
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
import transformers

from gigpo_jax.engines.base import SamplingParams
from gigpo_jax.engines.jax.jax_engine import EngineSettings, JaxEngine
from gigpo_jax.models import decoder
from gigpo_jax.models.files.save_weights import save_hf
from gigpo_jax.models.published import PUBLISHED

RESULTS = Path(__file__).parent / "results"
CHUNK = 32
CONVERSATION_MODEL = decoder.DecoderConfig(4096, 256, 768, 4, 4, 2, 64)


def random_params(config: decoder.DecoderConfig, dtype: Any) -> decoder.Params:
    """Draws normal matrices of deviation 0.02; norm scales are 1."""
    rng = np.random.default_rng(0)

    def draw_leaf(path: Any, shape: jax.ShapeDtypeStruct) -> jax.Array:
        # By numpy, which is quicker than a busy device.
        values = rng.standard_normal(shape.shape, np.float32) * 0.02
        if "scale" in jax.tree_util.keystr(path):
            values = np.ones_like(values)
        return jnp.asarray(values, dtype)

    return jax.tree_util.tree_map_with_path(draw_leaf, decoder.abstract_params(config))


def time_generation(generate: Callable[[], int]) -> dict[str, float]:
    """Runs a generation once; returns its wall and CPU seconds, and tokens a second of each."""
    wall_start = time.perf_counter()
    cpu_start = time.process_time()
    tokens = generate()
    wall_s = time.perf_counter() - wall_start
    cpu_s = time.process_time() - cpu_start
    return {
        "wall_s": wall_s,
        "cpu_s": cpu_s,
        "tokens_per_s": tokens / wall_s,
        "tokens_per_cpu_s": tokens / cpu_s,
    }


def engine_generation(engine: JaxEngine, prompts: np.ndarray, response: int) -> Callable[[], int]:
    """Returns a function that generates for all prompts at once and counts the tokens."""

    async def generate_all() -> int:
        calls = []
        for index, prompt in enumerate(prompts):
            settings = SamplingParams(max_tokens=response, key=(0, index))
            calls.append(engine.generate(prompt, settings))
        completions = await asyncio.gather(*calls)
        return sum(completion.tokens.size for completion in completions)

    return lambda: asyncio.run(generate_all())


def transformers_generation(model: Any, prompts: np.ndarray, response: int) -> Callable[[], int]:
    """Returns the function of `engine_generation` for a model of transformers."""
    tokens = torch.from_numpy(prompts).long()
    mask = torch.ones_like(tokens)
    settings = {
        "do_sample": True,
        "top_k": 0,
        "max_new_tokens": response,
        "min_new_tokens": response,
        "pad_token_id": 0,
    }

    def generate() -> int:
        with torch.inference_mode():
            return model.generate(tokens, attention_mask=mask, **settings).shape[0] * response

    return generate


def compare(config: decoder.DecoderConfig, dtype: str, args: argparse.Namespace) -> dict[str, Any]:
    """Measures both sides in turns for one dtype."""
    params = random_params(config, jnp.dtype(dtype))
    with tempfile.TemporaryDirectory() as folder:
        save_hf(folder, config, params)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=getattr(torch, dtype)
        ).eval()
    prompts = np.random.default_rng(1).integers(
        0, config.vocab_size, (args.requests, args.prompt), np.int32
    )
    with JaxEngine(
        config,
        params,
        EngineSettings(
            slots=args.requests,
            max_length=args.prompt + args.response,
            prefill_buckets=(args.prompt,),
            prefill_rows=(min(8, args.requests),),
            decode_steps=args.response,
        ),
    ) as engine:
        engine.warmup()
        sides = {
            "gigpo_jax": engine_generation(engine, prompts, args.response),
            "transformers": transformers_generation(model, prompts, args.response),
        }
        transformers_generation(model, prompts[:1, :8], 2)()
        runs: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
        for _ in range(args.rounds):
            for name, generate in sides.items():
                runs[name].append(time_generation(generate))
                columns = [f"{key} {value:8.2f}" for key, value in runs[name][-1].items()]
                print(f"{dtype:9} {name:13} {'  '.join(columns)}", flush=True)
    medians = {name: median_run(side_runs) for name, side_runs in runs.items()}
    ratios = {
        key: medians["gigpo_jax"][key] / medians["transformers"][key]
        for key in ("tokens_per_s", "tokens_per_cpu_s")
    }
    return {"dtype": dtype, "median": medians, "ratio": ratios, "runs": runs}


def conversation_generation(
    engine: JaxEngine, turns: int, args: argparse.Namespace
) -> Callable[[], int]:
    """Returns a function that plays all conversations at once and counts the sampled tokens."""

    async def play_episode(episode: int) -> int:
        rng = np.random.default_rng(episode)
        sampled = 0
        prompt = np.zeros((0,), np.int32)
        for turn in range(turns):
            message = rng.integers(0, engine.config.vocab_size, args.message, np.int32)
            prompt = np.concatenate([prompt, message])
            settings = SamplingParams(
                max_tokens=args.response, key=(episode, turn), session=(episode, 0)
            )
            completion = await engine.generate(prompt, settings)
            sampled += completion.tokens.size
            prompt = np.concatenate([prompt, completion.tokens])
        engine.end_session((episode, 0))
        return sampled

    async def play_all() -> int:
        return sum(await asyncio.gather(*map(play_episode, range(args.episodes))))

    return lambda: asyncio.run(play_all())


def compare_conversations(turns: int, args: argparse.Namespace) -> dict[str, Any]:
    """Measures the three ways of reading the prompts of conversations, in turns."""
    config = CONVERSATION_MODEL
    params = random_params(config, jnp.float32)
    whole = EngineSettings(
        slots=args.episodes,
        max_length=turns * (args.message + args.response),
        prefill_rows=(args.episodes,),
    )
    chunks = replace(whole, prefill_chunk=CHUNK)
    settings = {
        "kept": replace(chunks, keep_responses=True),
        "read again in chunks": chunks,
        "read again whole": whole,
    }
    engines = {name: JaxEngine(config, params, each) for name, each in settings.items()}
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in engines}
    for engine in engines.values():
        engine.warmup()
    for version in range(args.rounds):
        for name, engine in engines.items():
            # No slot holds prompts of the round before.
            engine.update_weights(params, version)
            engine.prompt_tokens = 0
            engine.reused_tokens = 0
            times = time_generation(conversation_generation(engine, turns, args))
            read_tokens = engine.prompt_tokens - engine.reused_tokens
            runs[name].append({"prefill_tokens": read_tokens / args.episodes} | times)
            columns = [f"{key} {value:8.1f}" for key, value in runs[name][-1].items()]
            print(f"{turns:3} turns {name:20} {'  '.join(columns)}", flush=True)
    for engine in engines.values():
        engine.close()
    return {
        "turns": turns,
        "new_tokens": turns * args.message,
        "median": {name: median_run(side_runs) for name, side_runs in runs.items()},
        "runs": runs,
    }


def median_run(runs: list[dict[str, float]]) -> dict[str, float]:
    """Returns the median of each measure."""
    return {key: statistics.median(run[key] for run in runs) for key in runs[0]}


def describe_machine() -> dict[str, Any]:
    """Returns what times depend on."""
    return {
        "cores": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "load_average": os.getloadavg(),
        "machine": platform.processor() or platform.machine(),
        "versions": {
            "jax": jax.__version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
    }


def measure_conversations(args: argparse.Namespace) -> None:
    """Compares conversations of all numbers of turns and writes the result."""
    record = {
        "episodes": args.episodes,
        "message_tokens": args.message,
        "response_tokens": args.response,
        "chunk": CHUNK,
        "rounds": args.rounds,
        "results": [compare_conversations(turns, args) for turns in args.turns],
        **describe_machine(),
    }
    write_record(record, args.output or RESULTS / "conversations.json")


def write_record(record: dict[str, Any], path: Path) -> None:
    """Writes a result as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--dtypes", nargs="+", default=["float32", "bfloat16"], choices=["float32", "bfloat16"]
    )
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--prompt", type=int, default=256)
    parser.add_argument("--response", type=int, default=64)
    parser.add_argument("--model", default="0.5b", choices=sorted(PUBLISHED))
    parser.add_argument("--turns", type=int, nargs="+", default=[])
    parser.add_argument("--episodes", type=int, default=4)
    parser.add_argument("--message", type=int, default=40)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    if args.turns:
        measure_conversations(args)
        return
    results = [compare(PUBLISHED[args.model], dtype, args) for dtype in args.dtypes]
    print(f"\n{'dtype':9} {'side':13} {'tokens/s':>9} {'tokens/CPU s':>13}")
    for result in results:
        for name, median in result["median"].items():
            print(
                f"{result['dtype']:9} {name:13} {median['tokens_per_s']:9.1f} "
                f"{median['tokens_per_cpu_s']:13.1f}"
            )
    record = {
        "model": args.model,
        "requests": args.requests,
        "prompt_tokens": args.prompt,
        "response_tokens": args.response,
        **describe_machine(),
        "results": results,
    }
    write_record(record, args.output or RESULTS / "engine.json")


if __name__ == "__main__":
    main()
