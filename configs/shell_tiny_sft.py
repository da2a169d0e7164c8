"""The warm start of shell_tiny.py: imitation of the expert with random commands, in two stages.

    c=configs/shell_tiny_sft.py
    w=runs/shell_sft
    gigpo sft --config=$c:1 --workdir=${w}1 --out=${w}1/model
    gigpo sft --config=$c:2 --workdir=${w}2 --out=models/shell_tiny

The first stage learns to write commands, from an expert that takes any command of the menu in 20%
of its steps. The second imitates one that does so in 80%: it is to play worse, so that there is
something to learn.

Hardware: one thread on 2 cores that other programs kept busy, 14 and 2 minutes (166 and 16 s of
CPU time without the commands). Result: 0.2 M parameters, held-out cross-entropy 0.160 and then
0.299 nats a response token. The demonstrators win 82.2 and 16.0% of their episodes.
"""

from ml_collections import ConfigDict

from configs.shell_tiny import shell_config
from configs.tiny import imitation_config

STAGES = {
    "1": {
        "sft.episodes": 2000,
        "sft.epochs": 8,
        "sft.minibatch": 32,
        "optim.lr": 3e-3,
        "sft.demonstrator": {"random_fraction": 0.2},
    },
    "2": {
        "seed": 1,
        "model.path": "runs/shell_sft1/model",
        "sft.episodes": 500,
        "sft.epochs": 1,
        "sft.minibatch": 64,
        "optim.lr": 1e-3,
        "sft.demonstrator": {"random_fraction": 0.8},
    },
}


def get_config(stage: str = "1") -> ConfigDict:
    """The config of a stage, 1 or 2."""
    return imitation_config(shell_config(), STAGES, stage).lock()
