"""Our tokenizer beside the tokenizers of transformers: start-up, memory and throughput.

    python benchmarks/tokenizer.py [--repeats 5] [--folder FOLDER]

Writes benchmarks/results/tokenizer.json. Every measurement of start-up is a fresh process, which
loads the tokenizer of a model folder and encodes one chat prompt: with nothing imported, and after
jax and the model were imported, as in a run. Ours reads the folder with PreTrainedTokenizerFast and
renders templates in a process of its own; AutoTokenizer renders in this process. It is measured
with PyTorch hidden, as an installation of this package has it, and with PyTorch, which it imports
where it is installed. The vocabulary has 151,643 byte-pair entries, as in Qwen2.5, unless
`--folder` names a model. Both sides must give the same token ids. Rows are medians: CPU seconds, as
the machine may be shared, including the renderer; and the shortest wall time of a prompt.
"""

import argparse
import importlib.machinery
import json
import os
import platform
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tokenizers

RESULTS = Path(__file__).parent / "results"
VOCABULARY = 151_643
PROMPTS = 200
WORDS = 300  # in a prompt
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content"
    " + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
LIBRARIES = ("gigpo_jax", "transformers", "transformers with torch")


def make_folder(folder: Path) -> Path:
    """Writes a byte-pair tokenizer of the size of Qwen2.5's with random merges."""
    rng = random.Random(0)
    pieces = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    merges = []
    short_pieces = list(pieces)
    while len(vocabulary) < VOCABULARY:
        pair = (rng.choice(short_pieces), rng.choice(short_pieces))
        piece = "".join(pair)
        if piece not in vocabulary:
            vocabulary[piece] = len(vocabulary)
            merges.append(pair)
            if len(piece) < 4:
                short_pieces.append(piece)
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "chat_template": TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


class TorchlessFinder(importlib.machinery.PathFinder):
    """Finder of modules other than PyTorch."""

    @classmethod
    def find_spec(cls, fullname: str, path: Any = None, target: Any = None) -> Any:
        """Finds a module; None for PyTorch."""
        if fullname.partition(".")[0] == "torch":
            return None
        return importlib.machinery.PathFinder.find_spec(fullname, path, target)


def load_encoder(library: str, folder: str) -> Callable[[str], Sequence[int]]:
    """Loads a tokenizer; returns the function from a user's text to the ids of a chat prompt."""
    if library == "gigpo_jax":
        from gigpo_jax.models.text.tokenizer import load_tokenizer

        return load_tokenizer(folder).encode_chat
    if library == "transformers":
        path_finder = importlib.machinery.PathFinder
        sys.meta_path[:] = [
            TorchlessFinder if finder is path_finder else finder for finder in sys.meta_path
        ]
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)

    def encode(text: str) -> Sequence[int]:
        messages = [{"role": "user", "content": text}]
        ids: Any = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=True, return_dict=False
        )
        return ids

    return encode


def peak_megabytes() -> float:
    """Largest resident size of this process until now."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def renderer_usage(library: str) -> tuple[float, float]:
    """CPU seconds and megabytes of the process that renders templates."""
    if library != "gigpo_jax":
        return 0.0, 0.0
    from gigpo_jax.models.text.chat_template import _RENDERER

    process = _RENDERER._process
    assert process is not None
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])
    pages = int(fields[21])
    return ticks / os.sysconf("SC_CLK_TCK"), pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def measure_process(library: str, folder: str, with_jax: bool) -> dict[str, Any]:
    """Measures start-up and throughput in this process."""
    if with_jax:
        import gigpo_jax.models.decoder  # noqa: F401
    earlier_peak = peak_megabytes()
    start = time.process_time()
    encode = load_encoder(library, folder)
    ids = list(encode("You are in the middle of a room."))
    renderer_s, renderer_mb = renderer_usage(library)
    startup = time.process_time() - start + renderer_s
    memory = peak_megabytes() - earlier_peak

    rng = random.Random(1)
    letters = "etaoinshrdlu"
    texts = []
    for _ in range(PROMPTS):
        words = ["".join(rng.choices(letters, k=rng.randint(2, 9))) for _ in range(WORDS)]
        texts.append(" ".join(words))
    start = time.process_time()
    wall_times = []
    tokens = 0
    for text in texts:
        wall_start = time.perf_counter()
        tokens += len(encode(text))
        wall_times.append(time.perf_counter() - wall_start)
    seconds = time.process_time() - start + renderer_usage(library)[0] - renderer_s
    return {
        "startup_s": startup,
        "memory_mb": memory,
        "renderer_mb": renderer_mb,
        "prompt_ms": 1e3 * seconds / PROMPTS,
        "prompt_wall_ms": 1e3 * min(wall_times),
        "ids": ids,
        "tokens": tokens,
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder", default="", help="model folder; empty: a generated one")
    parser.add_argument("--process", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.process:
        library, with_jax = args.process
        print(json.dumps(measure_process(library, args.folder, with_jax == "True")))
        return

    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or str(make_folder(Path(temporary)))
        cases = [(library, with_jax) for with_jax in (False, True) for library in LIBRARIES]
        runs: dict[tuple[str, bool], list[dict[str, Any]]] = {case: [] for case in cases}
        for _ in range(args.repeats):
            for library, with_jax in cases:  # in turns, so that other load hits all alike
                command = [sys.executable, __file__, f"--folder={folder}"]
                command += ["--process", library, str(with_jax)]
                output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                runs[library, with_jax].append(json.loads(output.splitlines()[-1]))

    measurements = [run for case in cases for run in runs[case]]
    assert len({(str(run["ids"]), run["tokens"]) for run in measurements}) == 1, "ids differ"
    rows = []
    names = ("startup_s", "memory_mb", "renderer_mb", "prompt_ms", "prompt_wall_ms")
    print("| tokenizer | start-up, CPU s | memory, MB | renderer, MB | CPU ms | wall ms |")
    print("|---|---|---|---|---|---|")
    for library, with_jax in cases:
        row: dict[str, Any] = {"library": library, "after_jax": with_jax}
        for name in names:
            row[name] = round(statistics.median(run[name] for run in runs[library, with_jax]), 3)
        rows.append(row)
        label = f"{library}, after jax" if with_jax else library
        print(f"| {label} | " + " | ".join(f"{row[name]:.2f}" for name in names) + " |")
    RESULTS.mkdir(exist_ok=True)
    record = {
        "repeats": args.repeats,
        "folder": args.folder or f"generated, {VOCABULARY} entries",
        "tokens_a_prompt": measurements[0]["tokens"] / PROMPTS,
        "machine": platform.machine(),
        "rows": rows,
    }
    (RESULTS / "tokenizer.json").write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
