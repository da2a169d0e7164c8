"""Lower bounds of an iteration of the published ALFWorld config by part, beside a measured one.

    python -m benchmarks.iteration_bounds --targets h100x1 h200x1 [--variants published remat-dots]

It needs the extras preflight-tpu and preflight-gpu, and no device. Each variant is compiled by
`gigpo preflight`, with lengths such that a step has as many tokens as in the iteration that
`benchmarks/gpu.py` measured (nvidia_h200.json). Adds to benchmarks/results/iteration_bounds.json
and prints the table. A bound is the longest of reading memory, products at the peak and the links:
what shared prefixes save is counted by benchmarks/compiled_trees.py.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from gigpo_jax.learner.expected_tokens import FILL
from gigpo_jax.tools.preflight.targets import find_target

RESULTS = Path(__file__).parent / "results"
RESULT = RESULTS / "iteration_bounds.json"
# With rl.old_logprobs=engine the scores take half.
VARIANTS: dict[str, tuple[str, ...]] = {
    "published": (),
    "remat-dots": ("model.remat=dots",),
}


def read_measured() -> dict[str, Any]:
    """The measurements of a device, with the iteration's tokens."""
    return json.loads((RESULTS / "nvidia_h200.json").read_text())


def bound_parts(target: str, settings: tuple[str, ...]) -> dict[str, Any]:
    """Seconds of an iteration's parts, at least, and the room that is left on a device in GiB."""
    iteration = read_measured()["iteration"]
    lengths = {
        "max_prompt_tokens": iteration["prompt_tokens_mean"],
        "max_response_tokens": iteration["response_tokens"],
    }
    # A plan assumes that steps fill such a share of the limits.
    limits = [f"sampling.{key}={round(mean / FILL)}" for key, mean in lengths.items()]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "report.json"
        flags = [f"--config.{setting}" for setting in (*limits, *settings)]
        command = [sys.executable, "-m", "gigpo_jax", "preflight", "--config=alfworld:1.5b"]
        command += [
            f"--target={target}",
            f"--out={out}",
            f"--config.mesh.fsdp={find_target(target).count}",
            "--config.model.path=Qwen2.5-1.5B-Instruct",
        ]
        done = subprocess.run([*command, *flags], stdout=subprocess.PIPE, text=True)
        if not out.exists():
            raise SystemExit(done.stdout or f"{target}: preflight ended with {done.returncode}")
        report = json.loads(out.read_text())
    left = min(program["left"] for program in report["programs"].values())
    return {**report["iteration"], "left_gib": left / 2**30}


def measured_parts() -> dict[str, float]:
    """Seconds of the measured iteration by part; prefill and decode from their own speeds."""
    measured = read_measured()
    iteration = measured["iteration"]
    prompts = iteration["steps"] * iteration["prompt_tokens_mean"]
    parts = {
        "update": iteration["trained_tokens"] / measured["train"]["tokens_per_s"],
        "prefill": prompts / measured["prefill"]["tokens_per_s"],
        "decode": iteration["generated_tokens"] / measured["decode"]["tokens_per_s"],
    }
    parts["score"] = iteration["seconds"] - iteration["rollout_s"] - parts["update"]
    parts["host"] = iteration["rollout_s"] - parts["prefill"] - parts["decode"]
    return parts


def print_table(results: dict[str, dict[str, Any]]) -> None:
    """Prints seconds by part."""
    names = ("update", "score", "prefill", "decode", "host")
    print(f"{'':<28}" + "".join(f"{name:>9}" for name in (*names, "all", "GiB left")))
    for label, parts in (*results.items(), ("NVIDIA H200, measured", measured_parts())):
        seconds = [parts.get(name, 0.0) for name in names]
        left = f"{parts['left_gib']:>9.1f}" if "left_gib" in parts else ""
        print(f"{label:<28}" + "".join(f"{s:>9.1f}" for s in (*seconds, sum(seconds))) + left)


def main() -> None:
    """Compiles, writes and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--targets", nargs="+", default=["h100x1", "h200x1"])
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=list(VARIANTS))
    flags = parser.parse_args()
    results = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    for target in flags.targets:
        for variant in flags.variants:
            results[f"{target} {variant}"] = bound_parts(target, VARIANTS[variant])
            RESULT.write_text(json.dumps(results, indent=1) + "\n")
    print_table(results)


if __name__ == "__main__":
    main()
