"""The warm start of sokoban_text_tiny.py: imitation of a demonstrator, in two stages.

    c=configs/sokoban_text_tiny_sft.py
    w=runs/sokoban_sft
    gigpo sft --config=$c:1 --workdir=${w}1 --out=${w}1/model
    gigpo sft --config=$c:2 --workdir=${w}2 --out=models/sokoban_text_tiny

The first stage learns to read the room, from a demonstrator that acts at random in 30% of its
steps. The second imitates one that does so in 85%: it is to play worse, so that there is something
to learn.

Hardware: one of 2 cores that other programs kept busy, 43 and 2 minutes (772 and 105 updates).
Result: 0.2 M parameters, held-out cross-entropy 0.177 and then 0.276 nats a response token;
docs/vision.md says what it scores.
"""

from ml_collections import ConfigDict

from configs.sokoban_text_tiny import sokoban_text_config
from configs.tiny import imitation_config

STAGES = {
    "1": {
        "sft.episodes": 8000,
        "sft.epochs": 2,
        "sft.minibatch": 128,
        "optim.lr": 4e-3,
        "sft.demonstrator": {"random_fraction": 0.3},
    },
    "2": {
        "seed": 1,
        "model.path": "runs/sokoban_sft1/model",
        "sft.episodes": 1200,
        "sft.epochs": 1,
        "sft.minibatch": 128,
        "optim.lr": 1e-3,
        "sft.demonstrator": {"random_fraction": 0.85},
    },
}


def get_config(stage: str = "1") -> ConfigDict:
    """The config of a stage, 1 or 2."""
    return imitation_config(sokoban_text_config(), STAGES, stage).lock()
