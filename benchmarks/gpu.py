"""One accelerator in one call of under ten minutes; random weights.

    python benchmarks/gpu.py [--shape 1.5b] [--parts train decode prefill attention iteration]
    python benchmarks/gpu.py --compare --limit-s 470              # old and new, within eight minutes
    python benchmarks/gpu.py --shape tiny --platform cpu          # a smoke run without an accelerator

Writes benchmarks/results/<device>.json (with --compare <device>_compared.json), and the profile of
one update, of decoding and of each of their variants in <device>.<part>.trace.json.gz
(https://ui.perfetto.dev). Each part runs in a process of its own: its peak of memory is its own,
and one that fails or takes too long leaves the others.

A machine with jax, flax, optax, orbax-checkpoint, transformers, tokenizers and jinja2, but no
index, needs two more packages as wheels, fetched elsewhere:

    pip download --no-deps -d wheels ml_collections==1.1.0 alfworld==0.4.2
    pip install --no-index --no-deps --target /tmp/site wheels/*
    PYTHONPATH=/tmp/site:. python benchmarks/gpu.py --compare --limit-s 470 --out OUT/compared.json

* MFU counts the operations that the work needs: 6 (prefill: 2) per matrix weight and token,
  attention within segments only, the vocabulary product at response tokens only; no padding, no
  recomputation. Peak: the data sheet's dense bf16.
* The decode bound is the time to read every weight once and the filled part of the KV cache once a
  step. Bandwidth: the data sheet's. A device that is not in `DEVICES` needs --peak-tflops and
  --bandwidth-gb; without them a matrix product and a copy are measured instead, and the program
  says so.
* `forecast_memory_gb` is the estimate of `gigpo_jax.devices.memory` for the same work, without XLA's
  temporaries.
"""

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from accelerator import MEASUREMENTS, measure_part

from gigpo_jax.models.published import PUBLISHED

RESULTS = Path(__file__).parent / "results"
ROWS = ("--rows=8", "--row-length=4096", "--repeats=3")
FAST = ("rl.old_logprobs=engine", "engine.prefill_rows=128")
# Label -> part and flags of what --compare runs. Eight steps are a sixth of an iteration.
COMPARED: dict[str, tuple[str, ...]] = {
    "decode_stacked": ("decode", "--stacked"),
    "decode": ("decode",),
    "chunks_stacked": ("chunks", "--stacked"),
    "chunks": ("chunks",),
    "chunks_128": ("chunks", "--prefill-rows=128"),
    "iteration_fast": ("iteration", "--max-steps=8", "--remat=dots", "--set", *FAST),
    "iteration": ("iteration", "--max-steps=8"),
    "train_dots": ("train", "--remat=dots", *ROWS),
    "train": ("train", *ROWS),
    "train_dots_2_rows": ("train", "--remat=dots", *ROWS, "--rows=2"),
}


def make_parser() -> argparse.ArgumentParser:
    """The flags."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=[*PUBLISHED, "tiny"], default="1.5b")
    parser.add_argument(
        "--platform", choices=["cuda", "tpu", "cpu"], default=None, help="default: what jax finds"
    )
    parser.add_argument(
        "--parts", nargs="+", choices=list(MEASUREMENTS), default=list(MEASUREMENTS)
    )
    parser.add_argument(
        "--part",
        choices=list(MEASUREMENTS),
        default=None,
        help="of the processes that this program starts",
    )
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--row-length", type=int, default=None, help="default: 8192; tiny: 128")
    parser.add_argument("--microbatches", type=int, default=4)
    parser.add_argument(
        "--remat", choices=["none", "dots", "attention", "full", "offload"], default="full"
    )
    parser.add_argument(
        "--chunk", type=int, default=1024, help="tokens whose logits exist at a time"
    )
    parser.add_argument("--slots", type=int, default=None, help="default: 128; tiny: 4")
    parser.add_argument("--context", type=int, default=None, help="default: 1024; tiny: 32")
    parser.add_argument(
        "--steps", type=int, default=None, help="decode steps in a call; default: 32; tiny: 4"
    )
    parser.add_argument(
        "--response", type=int, default=None, help="tokens in the iteration; default: 112; tiny: 4"
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--peak-tflops", type=float, default=None, help="dense bf16; default: by the device's name"
    )
    parser.add_argument(
        "--bandwidth-gb", type=float, default=None, help="GB/s of its memory; default: by its name"
    )
    parser.add_argument("--limit-s", type=float, default=570, help="for all parts together")
    parser.add_argument("--compare", action="store_true", help="old and new ways, side by side")
    parser.add_argument("--stacked", action="store_true", help="an engine with stacked layers")
    parser.add_argument("--prefill-rows", type=int, default=32, help="chunks of a prefill")
    parser.add_argument(
        "--max-steps", type=int, default=None, help="steps of an episode; default: 50; tiny: 2"
    )
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="of an iteration")
    parser.add_argument(
        "--trace", type=Path, default=None, help="of the processes that this program starts"
    )
    parser.add_argument(
        "--out", type=Path, default=None, help="default: benchmarks/results/<device>.json"
    )
    return parser


def parse() -> argparse.Namespace:
    """The command line, with sizes that fit the shape."""
    parser = make_parser()
    args = parser.parse_args()
    if (args.peak_tflops is None) != (args.bandwidth_gb is None):
        parser.error("give both --peak-tflops and --bandwidth-gb, or neither")
    if args.peak_tflops is not None and not (args.peak_tflops > 0 and args.bandwidth_gb > 0):
        parser.error("--peak-tflops and --bandwidth-gb must be greater than 0")
    sizes = {
        "row_length": (8192, 128),
        "slots": (128, 4),
        "context": (1024, 32),
        "steps": (32, 4),
        "response": (112, 4),
        "max_steps": (50, 2),
    }
    for name, (usual, tiny) in sizes.items():
        if getattr(args, name) is None:
            setattr(args, name, tiny if args.shape == "tiny" else usual)
    return args


def run(
    part: str, flags: Sequence[str], trace: Path, limit_s: float
) -> tuple[dict[str, object], dict[str, object]]:
    """The device and the result of a part, or why there is none."""
    if limit_s <= 0:
        return {}, {"error": "no time left"}
    # The command line last: it overrides.
    command = [sys.executable, __file__, *flags, *sys.argv[1:]]
    command += ["--part", part, "--trace", str(trace)]
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, text=True, timeout=limit_s, check=True
        )
    except subprocess.TimeoutExpired:
        return {}, {"error": f"not done after {limit_s:.0f} s"}
    except subprocess.CalledProcessError as err:
        return {}, {"error": f"exit status {err.returncode}"}
    about, result = json.loads(done.stdout.splitlines()[-1])
    return about, result


def main() -> int:
    """Runs all parts, or one of them in this process."""
    args = parse()
    if args.part:
        print(json.dumps(measure_part(args.part, args)))
        return 0
    folder = args.out.parent if args.out else RESULTS
    folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    found: dict[str, object] = {}
    results: dict[str, dict[str, object]] = {}
    runs = COMPARED if args.compare else {part: (part,) for part in args.parts}
    for label, (part, *flags) in runs.items():
        left_s = args.limit_s - (time.monotonic() - began)
        trace = folder / f"{label}.trace.json.gz"
        about, results[label] = run(part, flags, trace, left_s)
        found |= about
        print(
            f"| {label} |",
            " | ".join(f"{name} {value}" for name, value in results[label].items()),
            "|",
            flush=True,
        )
        # Written each time: what is measured stays if the machine is taken away.
        name = re.sub(r"\W+", "_", str(found.get("device", "unknown"))).lower()
        out = args.out or folder / f"{name}{'_compared' * args.compare}.json"
        out.write_text(json.dumps(found | results, indent=2) + "\n")
        if trace.exists():
            trace.replace(out.with_suffix(f".{label}.trace.json.gz"))
    return int(any("error" in result for result in results.values()))


if __name__ == "__main__":
    sys.exit(main())
