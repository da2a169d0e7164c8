"""Speed of the in-process engine against `generate` of transformers, with the same weights.

    python benchmarks/engine.py [--dtypes float32 bfloat16] [--rounds 2]
                                [--requests 32] [--prompt 256] [--response 64]

Random weights of the Qwen2.5-0.5B shape; both sides read the same prompts and sample at temperature
1 without stopping. The two take turns (A B A B ...) and the medians count. CPU seconds are those of
the whole process, all threads: on a busy machine they tell more than the clock. Writes
benchmarks/results/engine.json.
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
from gigpo_jax.models.files.weights import save_hf

RESULT = Path(__file__).parent / "results" / "engine.json"


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
    medians = {}
    for name, side_runs in runs.items():
        medians[name] = {
            key: statistics.median(run[key] for run in side_runs) for key in side_runs[0]
        }
    ratios = {
        key: medians["gigpo_jax"][key] / medians["transformers"][key]
        for key in ("tokens_per_s", "tokens_per_cpu_s")
    }
    return {"dtype": dtype, "median": medians, "ratio": ratios, "runs": runs}


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
    parser.add_argument("--model", default="0.5b", choices=sorted(decoder.PUBLISHED))
    parser.add_argument("--output", type=Path, default=RESULT)
    args = parser.parse_args()
    results = [compare(decoder.PUBLISHED[args.model], dtype, args) for dtype in args.dtypes]
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
        "cores": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "load_average": os.getloadavg(),
        "machine": platform.processor() or platform.machine(),
        "versions": {
            "jax": jax.__version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
        "results": results,
    }
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
