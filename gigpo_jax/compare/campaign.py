"""Plays the runs of a comparison that are missing, one after the other; a stopped campaign resumes where it was."""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gigpo_jax.errors import InputError


@dataclass(frozen=True)
class Planned:
    """A run that a campaign needs: its workdir, and its command."""

    folder: Path
    command: tuple[str, ...]


def plan(
    config: str, algorithms: Sequence[str], seeds: Sequence[int], out: Path, flags: Sequence[str]
) -> list[Planned]:
    """The runs of all algorithms and seeds: all algorithms of a seed before the next seed.

    Args:
      config: as for `gigpo_jax.main --config`.
      algorithms: names, each with settings of its own behind colons, such as "gigpo:rl.preset=paper".
      seeds: of the runs.
      out: the folder that their workdirs stand in.
      flags: more flags for all of them, such as "--config.train.iterations=60".
    """
    runs = []
    for seed in seeds:
        for algorithm in algorithms:
            name, *settings = algorithm.split(":")
            for setting in settings:
                if "=" not in setting:
                    raise InputError(f"--algorithms={algorithm}: {setting!r} is not KEY=VALUE, such as rl.preset=paper")
            folder = out / f"{algorithm.replace(':', '_').replace('/', '-')}_seed{seed}"
            own = (f"--config.rl.algorithm={name}", f"--config.seed={seed}", *(f"--config.{s}" for s in settings))
            start = (sys.executable, "-m", "gigpo_jax.main", f"--config={config}", f"--workdir={folder}")
            runs.append(Planned(folder, (*start, *flags, *own)))
    return runs


def play(runs: Sequence[Planned]) -> int:
    """Plays what is missing.

    Returns:
      0, or the exit status of the first run that failed or was stopped.
    """
    for number, run in enumerate(runs, start=1):
        if finished(run.folder):
            continue
        print(f"run {number} of {len(runs)}: {run.folder}", flush=True)
        status = subprocess.run(run.command, check=False).returncode
        if status:
            return status if status > 0 else 128 - status
    return 0


def finished(folder: Path) -> bool:
    """Whether the run of a workdir has all its iterations."""
    try:
        wanted = json.loads((folder / "config.json").read_text(encoding="utf-8"))["train"]["iterations"]
        last = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[-1]
    except (OSError, IndexError):
        return False
    return bool(json.loads(last)["step"] == wanted)
