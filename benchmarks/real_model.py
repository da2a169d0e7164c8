"""A pretrained model within a time limit: imitation, then reinforcement learning, on one device.

    python benchmarks/real_model.py --gguf SmolLM2-135M-Instruct.Q4_1.gguf --out results \
        [--task alfworld | drawers] [--minutes 8] [--arms gigpo grpo] [--seeds 0 1] [--parallel 1]
        [KEY=VALUE ...]

The file may be given in parts (`--gguf first second`), for machines that take no more than so much
at a time. It needs the packages gguf and, for alfworld, alfworld (`pip install --no-deps`). On an
H200 add batch.share_prefixes=False engine.prefill_chunk=0 engine.prefill_rows=32,
engine.prefill_buckets=512,1024.

* alfworld: generated games, 128 episodes an iteration (configs/smollm_alfworld.py).
* drawers: benchmarks/protocols/smollm_drawers.md and smollm_drawers_gpu.md, one seed of all arms
  after the other; each trained model then plays rows of five drawers, which no training has.

Each stage is a process of its own, which writes metrics, samples and evaluations below --out as it
goes: a cut run still counts. The stage that runs when the time is up gets a SIGTERM, writes a
checkpoint and ends. KEY=VALUE goes to every stage, such as train.groups=1 for a trial on a CPU.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

GRACE_S = 30  # between the SIGTERM and the end
ARMS = {
    "gigpo": [],
    "grpo": ["rl.algorithm=grpo"],
    "combined": [
        "rl.algorithm=repeat_discount",
        "rl.settings.base=graph_values",
        "rl.settings.episode=1",
        "env.anchor=state",
    ],
}


@dataclass(frozen=True)
class Task:
    """Configs of a task, the seeds of each arm, and settings of an evaluation after training."""

    imitation: str
    training: str
    seeds: tuple[int, ...]
    transfer: tuple[str, ...] = ()


TASKS = {
    "alfworld": Task("configs/smollm_alfworld_sft.py", "configs/smollm_alfworld.py", (0,)),
    "drawers": Task(
        "configs/smollm_drawers_sft.py",
        "configs/smollm_drawers.py",
        (0, 1, 2),
        (
            "env.options.drawers=5",
            "env.max_steps=10",
            "sampling.max_prompt_tokens=560",
        ),
    ),
}


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gguf", type=Path, nargs="+", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--task", choices=TASKS, default="alfworld")
    parser.add_argument("--minutes", type=float, default=8)
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=None)
    parser.add_argument("--seeds", type=int, nargs="+", default=None)
    parser.add_argument("--parallel", type=int, default=1, help="arms that share the device")
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE")
    args = parser.parse_args(argv)
    # ALFWorld's iterations are long: one arm at a time.
    args.arms = args.arms or (["gigpo"] if args.task == "alfworld" else list(ARMS))
    args.seeds = args.seeds or TASKS[args.task].seeds
    return args


def run_stage(name: str, arguments: Sequence[str], out: Path, deadline: float) -> bool:
    """Runs `gigpo` with these arguments until the deadline; whether it ended with success."""
    if time.monotonic() > deadline:
        print(f"{name}: no time left", flush=True)
        return False
    started = time.monotonic()
    with (out / f"{name}.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "gigpo_jax", *arguments], stdout=log, stderr=subprocess.STDOUT
        )
        try:
            process.wait(max(1.0, deadline - started))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(GRACE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    lines = (out / f"{name}.log").read_text().splitlines() or [""]
    seconds = time.monotonic() - started
    print(f"{name}: status {process.returncode} after {seconds:.0f} s; {lines[-1]}", flush=True)
    return process.returncode == 0


def run_arm(
    arm: str,
    seed: int,
    flags: Sequence[str],
    transfer: Sequence[str],
    out: Path,
    deadline: float,
) -> None:
    """Trains an arm, then evaluates it with the settings of `transfer`, if there are some."""
    name = f"{arm}_seed{seed}"
    flags = [
        *flags,
        f"--config.seed={seed}",
        f"--workdir={out / name}",
        *(f"--config.{setting}" for setting in ARMS[arm]),
    ]
    if run_stage(name, ["train", *flags], out, deadline) and transfer:
        changes = [f"--config.{setting}" for setting in transfer]
        results = f"--out={out / name / 'transfer.json'}"
        run_stage(f"{name}_transfer", ["eval", *flags, *changes, results], out, deadline)


def run(args: argparse.Namespace, scratch: Path) -> bool:
    """All stages; models stay in the scratch folder. Whether the first arm could begin."""
    deadline = time.monotonic() + 60 * args.minutes - GRACE_S
    args.out.mkdir(parents=True, exist_ok=True)
    task = TASKS[args.task]
    settings = [f"--config.{setting}" for setting in args.settings]
    file = scratch / "model.gguf"
    file.write_bytes(b"".join(part.read_bytes() for part in args.gguf))
    model, warm = scratch / "model", scratch / "warm"
    imported = ["import", str(file), "--dtype=float32", "--out", str(model)]
    if not run_stage("import", imported, args.out, deadline):
        return False
    imitation = [
        "sft",
        f"--config={task.imitation}",
        f"--config.model.path={model}",
        f"--workdir={scratch / 'imitation'}",
        f"--out={warm}",
        *settings,
    ]
    if not run_stage("imitation", imitation, args.out, deadline):
        return False
    if args.parallel > 1:
        os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{0.9 / args.parallel:.2f}"
    flags = [f"--config={task.training}", f"--config.model.path={warm}", *settings]
    with ThreadPoolExecutor(args.parallel) as pool:
        futures = [
            pool.submit(run_arm, arm, seed, flags, task.transfer, args.out, deadline)
            for seed in args.seeds
            for arm in args.arms
        ]
    for future in futures:
        future.result()  # raises what an arm raised
    return True


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 1 if import or imitation failed."""
    args = parse(argv)
    with tempfile.TemporaryDirectory() as scratch:
        return 0 if run(args, Path(scratch)) else 1


if __name__ == "__main__":
    sys.exit(main())
