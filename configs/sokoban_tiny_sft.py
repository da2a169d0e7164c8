"""The warm start of sokoban_tiny.py: imitation of a mediocre demonstrator, in two stages.

    c=configs/sokoban_tiny_sft.py
    w=runs/sokoban_tiny_sft
    gigpo sft --config=$c:1 --workdir=${w}1 --out=${w}1/model
    gigpo sft --config=$c:2 --workdir=${w}2 --out=models/sokoban_tiny

As sokoban_text_tiny_sft.py, with less noise: the demonstrators act at random in 10% and then in 80%
of their steps.

Hardware: one of 2 cores that other programs kept busy, 10 and 2 minutes (572 and 96 updates).
Result: 0.28 M parameters, held-out cross-entropy 0.103 and then 0.277 nats a response token;
docs/vision.md says what it scores.
"""

from ml_collections import ConfigDict

from configs.sokoban_text_tiny import sokoban_text_config
from configs.sokoban_tiny import with_pictures
from configs.tiny import imitation_config

STAGES = {
    "1": {
        "sft.episodes": 4000,
        "sft.epochs": 2,
        "sft.minibatch": 64,
        "optim.lr": 2e-3,
        "sft.demonstrator": {"random_fraction": 0.1},
    },
    "2": {
        "seed": 1,
        "model.path": "runs/sokoban_tiny_sft1/model",
        "sft.episodes": 600,
        "sft.epochs": 1,
        "sft.minibatch": 64,
        "optim.lr": 3e-4,
        "sft.demonstrator": {"random_fraction": 0.8},
    },
}


def get_config(stage: str = "1") -> ConfigDict:
    """The config of a stage, 1 or 2."""
    return with_pictures(imitation_config(sokoban_text_config(), STAGES, stage)).lock()
