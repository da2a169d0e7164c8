"""Speed of the vLLM engine against the in-process engine, and the time of a push of weights.

    python benchmarks/vllm.py [--models tiny 0.5b 1.5b] [--speed tiny 0.5b]
                              [--rounds 3] [--pushes 3] [--dtype float32]

Random weights of Qwen2.5 shapes (tiny: as models/alfworld_tiny, float32; the others bfloat16), or
of SmolLM2-135M (135m), one server on this machine, on the CPU. Both engines read the same prompts
and draw the same number of tokens at temperature 1 without stopping; they take turns in one run and
the medians count. A push is everything between the call and the verified answer: gathering and
writing the file (into memory), checking and loading it, and the probe. Its CPU seconds in the
learner's process and in the server's are counted too: other work on the machine changes them less.
Needs .venv-vllm (make vllm-venv) and, for 1.5b, 14 GiB of free memory. Writes
benchmarks/results/vllm.json.
"""

import argparse
import asyncio
import contextlib
import json
import os
import platform
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gigpo_jax.engines.base import SamplingParams
from gigpo_jax.engines.jax.jax_engine import EngineSettings, JaxEngine
from gigpo_jax.engines.remote.engine import RemoteEngine, RemoteSettings
from gigpo_jax.engines.remote.protocol import Limits, generate_request
from gigpo_jax.engines.remote.weight_store import WeightStore
from gigpo_jax.engines.vllm.launch import ServerProcess, VllmSettings, free_ports
from gigpo_jax.engines.vllm.server import VllmServer
from gigpo_jax.engines.vllm.worker.extension import tokenizer_fingerprint
from gigpo_jax.models import decoder
from gigpo_jax.models.files.hf_config import read_config
from gigpo_jax.models.files.write_config import config_json
from gigpo_jax.models.published import PUBLISHED
from gigpo_jax.models.text.tokenizer import load_tokenizer

ROOT = Path(__file__).parents[1]
TINY = ROOT / "models/alfworld_tiny"
POLLING_S = 2.0
RESULT = Path(__file__).parent / "results" / "vllm.json"
SMOLLM2 = decoder.DecoderConfig(
    49152, 576, 1536, 30, 9, 3, 64, rope_theta=100_000.0, model_type="llama"
)


def random_params(config: decoder.DecoderConfig, dtype: Any) -> decoder.Params:
    """Draws normal matrices of deviation 0.02, one at a time; norm scales are 1."""
    rng = np.random.default_rng(0)

    def draw_leaf(path: Any, shape: jax.ShapeDtypeStruct) -> jax.Array:
        if "scale" in jax.tree_util.keystr(path):
            return jnp.ones(shape.shape, dtype)
        return jnp.asarray(rng.standard_normal(shape.shape, np.float32) * np.float32(0.02), dtype)

    return jax.tree_util.tree_map_with_path(draw_leaf, decoder.abstract_params(config))


def model_folder(folder: Path, config: decoder.DecoderConfig, dtype: str) -> Path:
    """Writes a model folder without weights; the first push replaces the server's own."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config_json(config, dtype)))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TINY / name, folder / name)
    return folder


def time_generation(engine: Any, prompts: np.ndarray, response: int) -> float:
    """Generates for all prompts at once; returns the tokens a second of the clock."""

    async def generate_all() -> int:
        calls = []
        for index, prompt in enumerate(prompts):
            settings = SamplingParams(max_tokens=response, key=(0, index))
            calls.append(engine.generate(prompt, settings))
        completions = await asyncio.gather(*calls)
        return sum(completion.tokens.size for completion in completions)

    start = time.perf_counter()
    return asyncio.run(generate_all()) / (time.perf_counter() - start)


def compare_speed(
    config: decoder.DecoderConfig, params: Any, vllm: RemoteEngine, args: argparse.Namespace
) -> dict[str, Any]:
    """Measures both engines in turns."""
    rng = np.random.default_rng(1)
    # New prompts each round: the prefix cache has nothing of them. Those of a group are equal.
    shape = (args.requests // args.group, args.prompt)
    rounds = [
        rng.integers(0, config.vocab_size, shape, np.int32).repeat(args.group, axis=0)
        for _ in range(args.rounds)
    ]
    runs: dict[str, list[float]] = {"in process": [], "vllm": []}
    with JaxEngine(
        config,
        params,
        EngineSettings(
            slots=args.requests,
            max_length=args.prompt + args.response,
            prefill_buckets=(args.prompt,) if args.group == 1 else (),
            prefill_chunk=0 if args.group == 1 else 32,
            prefill_rows=(min(8, args.requests),),
            decode_steps=args.response,
            dtype=jax.tree.leaves(params)[0].dtype,
        ),
    ) as in_process:
        in_process.warmup()
        warmup_prompts = rng.integers(0, config.vocab_size, (2, args.prompt), np.int32)
        time_generation(vllm, warmup_prompts, 2)
        for prompts in rounds:
            for name, engine in (("in process", in_process), ("vllm", vllm)):
                runs[name].append(time_generation(engine, prompts, args.response))
                print(f"  {name:10} {runs[name][-1]:9.1f} tokens/s", flush=True)
    return {
        "tokens_per_s": {name: statistics.median(speeds) for name, speeds in runs.items()},
        "runs": runs,
    }


def server_cpu_s() -> float:
    """Returns the CPU seconds of this process's children and of theirs."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        # A process may end meanwhile.
        with contextlib.suppress(OSError):
            # The name of the program, in parentheses, may contain spaces.
            fields = path.read_text().rpartition(")")[2].split()
            number = int(path.parent.name)
            parents[number] = int(fields[1])
            ticks[number] = int(fields[11]) + int(fields[12])

    def is_descendant(number: int) -> bool:
        while number in parents:
            number = parents[number]
            if number == os.getpid():
                return True
        return False

    total = sum(ticks[number] for number in ticks if is_descendant(number))
    return total / os.sysconf("SC_CLK_TCK")


def measure_push(vllm: RemoteEngine, params: decoder.Params, version: int) -> dict[str, float]:
    """Measures one push of weights."""
    # In training an update lies between two pushes. vLLM's processes poll for a second after each
    # call, on cores that the next push needs.
    time.sleep(POLLING_S)
    cpu_s = time.process_time()
    server_s = server_cpu_s()
    start = time.perf_counter()
    vllm.update_weights(params, version)
    return {
        "push_s": time.perf_counter() - start,
        "learner_cpu_s": time.process_time() - cpu_s,
        "server_cpu_s": server_cpu_s() - server_s,
        "load_s": vllm.last_push["seconds"],
        "probe": vllm.last_push["probe_difference"],
    }


def measure_model(name: str, folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Measures the start, the pushes and, if requested, the speed of one model."""
    config = read_config(TINY) if name == "tiny" else (PUBLISHED | {"135m": SMOLLM2})[name]
    dtype = args.dtype or ("float32" if name == "tiny" else "bfloat16")
    params = random_params(config, jnp.dtype(dtype))
    store = WeightStore()
    server_settings = VllmSettings(
        python=ROOT / ".venv-vllm/bin/python",
        model=model_folder(folder / name, config, dtype),
        dtype=dtype,
        max_length=args.prompt + args.response,
        sequences=args.requests,
        weights_dir=store.folder,
        folder=folder,
        gpu=False,
        arguments=("--load-format", "dummy"),
    )
    (port,) = free_ports(1)
    settings = RemoteSettings(
        server=VllmServer,
        make_request=generate_request,
        urls=(),
        processes=(ServerProcess(server_settings, port, "benchmark"),),
        key="benchmark",
        dtype=dtype,
        max_length=args.prompt + args.response,
        tokenizer=tokenizer_fingerprint((TINY / "tokenizer.json").read_bytes()),
        limits=Limits(start_s=900.0, connect_s=60.0, request_s=600.0, push_s=600.0, restarts=0),
        probe=tuple(load_tokenizer(TINY).encode("you are in the middle of a room.")),
    )
    start = time.perf_counter()
    with RemoteEngine(config, params, settings=settings, store=store, say=print) as vllm:
        result: dict[str, Any] = {
            "model": name,
            "dtype": dtype,
            "bytes": vllm.last_push["bytes"],
            "pushes": [],
        }
        result["start_and_first_push_s"] = time.perf_counter() - start
        for version in range(1, args.pushes + 1):
            push = measure_push(vllm, params, version)
            result["pushes"].append(push)
            print(
                f"{name}: push {push['push_s']:.2f} s, of which check and load {push['load_s']:.2f} s; "
                f"CPU {push['learner_cpu_s']:.2f} s here, {push['server_cpu_s']:.2f} s there",
                flush=True,
            )
        for key in ("push_s", "load_s", "learner_cpu_s", "server_cpu_s"):
            result[key] = statistics.median(push[key] for push in result["pushes"])
        result["push_gb_per_s"] = result["bytes"] / 1e9 / result["push_s"]
        if name in args.speed:
            result["speed"] = compare_speed(config, params, vllm, args)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="*", default=["tiny", "0.5b", "1.5b"])
    parser.add_argument("--speed", nargs="*", default=["tiny", "0.5b"])
    parser.add_argument("--dtype", help="float32 or bfloat16, of all models")
    parser.add_argument("--pushes", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--group", type=int, default=1, help="requests with the same prompt")
    parser.add_argument("--prompt", type=int, default=256)
    parser.add_argument("--response", type=int, default=64)
    parser.add_argument("--output", type=Path, default=RESULT)
    args = parser.parse_args()
    results = []
    for name in args.models:
        with tempfile.TemporaryDirectory() as folder:
            results.append(
                measure_model(name, Path(folder), args) | {"load_average": os.getloadavg()}
            )
        record = {
            "requests": args.requests,
            "prompt_tokens": args.prompt,
            "response_tokens": args.response,
            "group": args.group,
            "cores": os.cpu_count(),
            "machine": platform.processor() or platform.machine(),
            "versions": {"jax": jax.__version__, "vllm": "0.32.0"},
            "results": results,
        }
        args.output.parent.mkdir(parents=True, exist_ok=True)
        args.output.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
