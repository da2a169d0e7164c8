"""How much of the credit a few steps carry: one rollout, graded by several estimators.

    python -m benchmarks.advantage_shares

The first rollout of `configs/alfworld_pooled.py` with seed 100, as in the choice of its learning
rates. Writes to benchmarks/results/advantage_shares.json the share of the sum of all absolute
advantages that the tenth of the steps with the largest ones has.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from gigpo_jax.rollout.read_record import read_rollouts

RESULT = Path(__file__).parent / "results/advantage_shares.json"
RUN = ("train.iterations=1", "train.save_rollouts=1", "eval.panel=", "seed=100")
GRAPH = ("env.anchor=state", "rl.settings.shrinkage=0.25", "rl.settings.truncation=ignore")
ARMS = {
    "grpo": ("rl.algorithm=grpo",),
    "gigpo": ("rl.algorithm=gigpo",),
    "repeat discount over gigpo": ("rl.algorithm=repeat_discount", "rl.settings.base=gigpo"),
    "graph_values": ("rl.algorithm=graph_values", *GRAPH),
    "graph_values, episode=1": ("rl.algorithm=graph_values", "rl.settings.episode=1", *GRAPH),
    "repeat discount over graph_values, episode=1": (
        "rl.algorithm=repeat_discount",
        "rl.settings.base=graph_values",
        "rl.settings.episode=1",
        *GRAPH,
    ),
}


def play_rollout(settings: tuple[str, ...], workdir: Path) -> np.ndarray:
    """Returns the absolute advantages of an arm's first rollout, largest first, [N] f64."""
    flags = [f"--config.{setting}" for setting in (*RUN, *settings)]
    command = [sys.executable, "-m", "gigpo_jax", "train", "--config=configs/alfworld_pooled.py"]
    subprocess.run(
        [*command, f"--workdir={workdir}", *flags], check=True, stdout=subprocess.DEVNULL
    )
    rollouts = read_rollouts(workdir / "rollouts/iteration_000001.host0.jsonl.gz")
    advantages = [step.advantage for episode in rollouts.episodes for step in episode.steps]
    sizes = np.abs(np.array(advantages, np.float64))
    return np.sort(sizes)[::-1]


def main() -> None:
    """Plays the rollout once for each arm and writes the shares."""
    shares = {}
    for arm, settings in ARMS.items():
        with tempfile.TemporaryDirectory() as folder:
            sizes = play_rollout(settings, Path(folder))
        tenth = sizes[: len(sizes) // 10]
        shares[arm] = round(float(tenth.sum() / sizes.sum()), 3)
        print(f"{arm}: {shares[arm]:.1%} of {len(sizes)} steps", flush=True)
    RESULT.write_text(json.dumps(shares, indent=2) + "\n")


if __name__ == "__main__":
    main()
