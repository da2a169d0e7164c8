"""The warm start of babyai_tiny.py: imitation of MiniGrid's bot with random actions.

c=configs/babyai_tiny_sft.py
w=runs/babyai_sft
gigpo sft --config=$c:1 --workdir=${w}1 --out=${w}1/model
gigpo sft --config=$c:2 --workdir=${w}2 --out=models/babyai_tiny

The first stage learns to read the view, from a bot that acts at random in 30% of its steps. The
second imitates one that does so in 75%: it is to play worse, so that there is something to learn.

Hardware: one of 2 cores that other programs kept busy, 6 and 4 minutes (223 and 49 s of CPU time).
Result: 0.2 M parameters, held-out cross-entropy 0.258 and then 0.303 nats a response token. The
demonstrators win 96.4 and 49.2% of their episodes in 16 actions.
"""

from ml_collections import ConfigDict

from configs.babyai_tiny import babyai_config
from configs.tiny import imitation_config

STAGES = {
    "1": {
        "sft.episodes": 3000,
        "sft.epochs": 2,
        "sft.minibatch": 128,
        "optim.lr": 4e-3,
    },
    "2": {
        "seed": 1,
        "model.path": "runs/babyai_sft1/model",
        "sft.episodes": 600,
        "sft.epochs": 1,
        "sft.minibatch": 128,
        "optim.lr": 1e-3,
    },
}
RANDOM_FRACTIONS = {"1": 0.3, "2": 0.75}


def get_config(stage: str = "1") -> ConfigDict:
    """The config of a stage, 1 or 2."""
    config = imitation_config(babyai_config(), STAGES, stage)
    for level in config.env.mix.values():
        level.demonstrator = ConfigDict({"random_fraction": RANDOM_FRACTIONS[stage]})
    return config.lock()
