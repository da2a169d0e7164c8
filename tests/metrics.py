"""The metrics of a run, as tests compare them."""

import json
from pathlib import Path

CLOCK = (
    "time/",
    "throughput/",
    "compile/",
)  # times, what derives from them, and compiles (a resumed run has its own)


def records(workdir: Path, without: tuple[str, ...] = CLOCK) -> list[dict[str, float]]:
    """The records of metrics.jsonl, without metrics whose names begin so."""
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    return [
        {k: v for k, v in json.loads(line).items() if not k.startswith(without)} for line in lines
    ]
