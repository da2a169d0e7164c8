"""Generated tokens a second: the in-process engine against transformers `generate`, same weights, same run.

    python benchmarks/engine.py [--dtypes float32 bfloat16] [--rounds 2] [--requests 32] [--prompt 256] [--response 64]

Random weights of the Qwen2.5-0.5B shape; both sides read the same prompts and sample at temperature 1 without stopping.
The two take turns (A B A B ...) and the medians count. CPU seconds are of the whole process, all threads: on a machine
that is busy with other work they tell more than the clock. Writes benchmarks/results/engine.json.
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

from gigpo_jax.models import qwen2
from gigpo_jax.models.weights import save_hf
from gigpo_jax.sampling.base import SamplingParams
from gigpo_jax.sampling.jax_engine import EngineSettings, JaxEngine

RESULT = Path(__file__).parent / "results" / "engine.json"


def random_params(config: qwen2.Qwen2Config, dtype: Any) -> qwen2.Params:
    """Normal matrices of deviation 0.02, norm scales 1, made by numpy (quicker than on a busy device)."""
    rng = np.random.default_rng(0)

    def leaf(path: Any, shape: jax.ShapeDtypeStruct) -> jax.Array:
        values = rng.standard_normal(shape.shape, np.float32) * 0.02
        return jnp.asarray(np.ones_like(values) if "scale" in jax.tree_util.keystr(path) else values, dtype)

    return jax.tree_util.tree_map_with_path(leaf, qwen2.abstract_params(config))


def timed(generate: Callable[[], int]) -> dict[str, float]:
    """Runs it once; wall and CPU seconds, and tokens a second of the clock."""
    wall, cpu = time.perf_counter(), time.process_time()
    tokens = generate()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {"wall_s": wall, "cpu_s": cpu, "tokens_per_s": tokens / wall, "tokens_per_cpu_s": tokens / cpu}


def engine_side(engine: JaxEngine, prompts: np.ndarray, response: int) -> Callable[[], int]:
    """A function that generates for all prompts at once and returns the number of tokens."""

    async def together() -> int:
        settings = [SamplingParams(max_tokens=response, key=(0, index)) for index in range(len(prompts))]
        responses = await asyncio.gather(*(engine.generate(p, s) for p, s in zip(prompts, settings)))
        return sum(each.tokens.size for each in responses)

    return lambda: asyncio.run(together())


def transformers_side(model: Any, prompts: np.ndarray, response: int) -> Callable[[], int]:
    """The same for transformers."""
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


def compare(config: qwen2.Qwen2Config, dtype: str, args: argparse.Namespace) -> dict[str, Any]:
    """One dtype: both sides, in turns."""
    params = random_params(config, jnp.dtype(dtype))
    with tempfile.TemporaryDirectory() as folder:
        save_hf(folder, config, params)
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
    prompts = np.random.default_rng(1).integers(0, config.vocab_size, (args.requests, args.prompt), np.int32)
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
            "gigpo_jax": engine_side(engine, prompts, args.response),
            "transformers": transformers_side(model, prompts, args.response),
        }
        transformers_side(model, prompts[:1, :8], 2)()
        runs: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
        for _ in range(args.rounds):
            for name, generate in sides.items():
                runs[name].append(timed(generate))
                print(
                    f"{dtype:9} {name:13} " + "  ".join(f"{k} {v:8.2f}" for k, v in runs[name][-1].items()), flush=True
                )
    medians = {
        name: {key: statistics.median(run[key] for run in each) for key in each[0]} for name, each in runs.items()
    }
    ours, theirs = medians["gigpo_jax"], medians["transformers"]
    ratios = {key: ours[key] / theirs[key] for key in ("tokens_per_s", "tokens_per_cpu_s")}
    return {"dtype": dtype, "median": medians, "ratio": ratios, "runs": runs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"], choices=["float32", "bfloat16"])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--prompt", type=int, default=256)
    parser.add_argument("--response", type=int, default=64)
    parser.add_argument("--model", default="0.5b", choices=sorted(qwen2.PUBLISHED))
    parser.add_argument("--output", type=Path, default=RESULT)
    args = parser.parse_args()
    results = [compare(qwen2.PUBLISHED[args.model], dtype, args) for dtype in args.dtypes]
    print(f"\n{'dtype':9} {'side':13} {'tokens/s':>9} {'tokens/CPU s':>13}")
    for result in results:
        for name, median in result["median"].items():
            print(f"{result['dtype']:9} {name:13} {median['tokens_per_s']:9.1f} {median['tokens_per_cpu_s']:13.1f}")
    record = {
        "model": args.model,
        "requests": args.requests,
        "prompt_tokens": args.prompt,
        "response_tokens": args.response,
        "cores": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "load_average": os.getloadavg(),
        "machine": platform.processor() or platform.machine(),
        "versions": {"jax": jax.__version__, "torch": torch.__version__, "transformers": transformers.__version__},
        "results": results,
    }
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
