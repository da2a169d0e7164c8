"""The warm start of ezpoints_tiny.py: imitation of a mediocre demonstrator, in two stages.

    c=configs/ezpoints_tiny_sft.py
    w=runs/ezpoints_tiny_sft
    gigpo sft --config=$c:1 --workdir=${w}1 --out=${w}1/model
    gigpo sft --config=$c:2 --workdir=${w}2 --out=models/ezpoints_tiny

The first stage learns to read the cards, from a demonstrator that acts at random in 25% of its
steps. The second imitates one that does so in 50%, so that the policy tries more than one formula.

Hardware: one of 2 cores that other programs kept busy, 10 and 0.5 minutes (226 and 30 updates).
Result: 0.28 M parameters, held-out cross-entropy 0.098 and then 0.131 nats a response token;
docs/vision.md says what it scores.
"""

from ml_collections import ConfigDict

from configs.ezpoints_tiny import with_cards
from configs.sokoban_text_tiny import sokoban_text_config
from configs.sokoban_tiny import with_pictures
from configs.tiny import imitation_config

STAGES = {
    "1": {
        "sft.episodes": 2000,
        "sft.epochs": 2,
        "sft.minibatch": 64,
        "optim.lr": 2e-3,
        "sft.demonstrator": {"random_fraction": 0.25},
    },
    "2": {
        "seed": 1,
        "model.path": "runs/ezpoints_tiny_sft1/model",
        "sft.episodes": 600,
        "sft.epochs": 1,
        "sft.minibatch": 64,
        "optim.lr": 3e-4,
        "sft.demonstrator": {"random_fraction": 0.5},
    },
}


def get_config(stage: str = "1") -> ConfigDict:
    """The config of a stage, 1 or 2."""
    config = imitation_config(sokoban_text_config(), STAGES, stage)
    return with_cards(with_pictures(config)).lock()
