"""Our image preprocessing beside transformers' own: time and bytes of a picture, and import.

    python benchmarks/images.py [--repeats 50]

Writes benchmarks/results/images.json. transformers' processor for Pillow runs without torchvision.
It is measured as published (scaled and normalised, float32) and without scaling, which gives pixels
as ours does. Import is the CPU time and the memory of a fresh process with PyTorch hidden, as an
installation of this package has it, and with PyTorch.
"""

import argparse
import functools
import importlib.machinery
import json
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

RESULTS = Path(__file__).parent / "results"
SIZES = ((168, 168), (100, 100), (300, 400), (900, 500))  # the first needs no resizing
MODULE = "transformers.models.qwen2_vl.image_processing_pil_qwen2_vl"


class TorchlessFinder(importlib.machinery.PathFinder):
    """Finder of modules other than PyTorch."""

    @classmethod
    def find_spec(cls, fullname: str, path: Any = None, target: Any = None) -> Any:
        """Finds a module; None for PyTorch."""
        if fullname.partition(".")[0] in ("torch", "torchvision"):
            return None
        return importlib.machinery.PathFinder.find_spec(fullname, path, target)


def hide_torch() -> None:
    """Makes this process look like one without PyTorch."""
    path_finder = importlib.machinery.PathFinder
    sys.meta_path[:] = [
        TorchlessFinder if finder is path_finder else finder for finder in sys.meta_path
    ]


def measure_import(torch: bool) -> dict[str, float]:
    """Measures the import of transformers' processor in this process."""
    if not torch:
        hide_torch()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    importlib.import_module(MODULE).Qwen2VLImageProcessorPil()
    seconds = time.process_time() - start
    memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak) / 1024
    return {"cpu_s": round(seconds, 2), "memory_mb": round(memory)}


def measure_pictures(repeats: int) -> list[dict[str, Any]]:
    """Measures both sides for pictures of several sizes."""
    hide_torch()
    from gigpo_jax.models.vision.images import cut_patches
    from gigpo_jax.models.vision.vision_config import VisionConfig

    config = VisionConfig()
    bounds = {"shortest_edge": config.min_pixels, "longest_edge": config.max_pixels}
    processor = importlib.import_module(MODULE).Qwen2VLImageProcessorPil(size=bounds)
    rng = np.random.default_rng(0)
    rows = []
    for size in SIZES:
        image = rng.integers(0, 256, (*size, 3), dtype=np.uint8)

        def prepare(image: np.ndarray = image, scale: bool = True) -> np.ndarray:
            settings = {"do_rescale": scale, "do_normalize": scale, "return_tensors": "np"}
            values: np.ndarray = processor([image], **settings)["pixel_values"]
            return values

        ours = cut_patches(config, image)
        frames = prepare(scale=False).reshape(-1, 3, 2, config.patch_size**2)[:, :, 0]
        rows.append(
            {
                "size": size,
                "differing_values": float((frames.reshape(ours.shape) != ours).mean().round(4)),
                "our_ms": time_call(functools.partial(cut_patches, config, image), repeats),
                "their_ms": time_call(prepare, repeats),
                "their_pixels_ms": time_call(functools.partial(prepare, scale=False), repeats),
                "our_bytes": ours.nbytes,
                "their_bytes": prepare().nbytes,
            }
        )
    return rows


def time_call(function: Callable[[], Any], repeats: int) -> float:
    """CPU milliseconds of one call."""
    function()
    start = time.process_time()
    for _ in range(repeats):
        function()
    return round(1e3 * (time.process_time() - start) / repeats, 3)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--import", dest="torch", choices=("0", "1"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.torch:
        print(json.dumps(measure_import(args.torch == "1")))
        return
    imports = {}
    for name, torch in (("without torch", "0"), ("with torch", "1")):
        command = [sys.executable, __file__, "--import", torch]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        imports[name] = json.loads(output.splitlines()[-1])
    record = {
        "machine": platform.machine(),
        "import": imports,
        "pictures": measure_pictures(args.repeats),
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "images.json").write_text(json.dumps(record, indent=2) + "\n")
    print(json.dumps(record, indent=2))


if __name__ == "__main__":
    main()
