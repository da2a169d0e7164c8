"""The warm start of frozenlake_tiny.py: imitation of a demonstrator, in two stages.

    c=configs/frozenlake_tiny_sft.py
    w=runs/frozenlake_sft
    gigpo sft --config=$c:1 --workdir=${w}1 --out=${w}1/model
    gigpo sft --config=$c:2 --workdir=${w}2 --out=models/frozenlake_tiny

The first stage learns to read the lake, from a demonstrator that acts at random in 30% of its
steps. The second imitates one that does so in 70%: it is to play worse, so that there is something
to learn.

Hardware: one of 2 cores that other programs kept busy, 3 minutes and 1 minute (31 and 14 s of CPU
time). Result: 0.1 M parameters, held-out cross-entropy 0.189 and then 0.261 nats a response token.
It reads the lake only in part: more episodes in the first stage lower the cross-entropy further.
"""

from ml_collections import ConfigDict

from configs.frozenlake_tiny import frozenlake_config
from configs.tiny import imitation_config

STAGES = {
    "1": {
        "sft.episodes": 2000,
        "sft.epochs": 2,
        "sft.minibatch": 128,
        "optim.lr": 4e-3,
        "sft.demonstrator": {"random_fraction": 0.3},
    },
    "2": {
        "seed": 1,
        "model.path": "runs/frozenlake_sft1/model",
        "sft.episodes": 600,
        "sft.epochs": 1,
        "sft.minibatch": 128,
        "optim.lr": 1e-3,
        "sft.demonstrator": {"random_fraction": 0.7},
    },
}


def get_config(stage: str = "1") -> ConfigDict:
    """The config of a stage, 1 or 2."""
    return imitation_config(frozenlake_config(), STAGES, stage).lock()
