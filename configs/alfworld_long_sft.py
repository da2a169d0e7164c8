"""The warm start of alfworld_long.py: imitation of a mediocre demonstrator, in two stages.

    c=configs/alfworld_long_sft.py
    gigpo sft --config=$c:1 --workdir=runs/l1 --out=runs/l1/model
    gigpo sft --config=$c:2 --workdir=runs/l2 --out=models/alfworld_long

The first stage learns to read: it predicts prompts as well as responses, of a demonstrator that
walks to a random place half of the time. The second learns to act, from responses alone, of one
that does so every fifth time and puts three objects of five down without having cleaned, heated or
cooled them.

Hardware: 2 cores; 15 and 7 minutes (927 and 807 updates) on a busy machine. Result: 0.17 M
parameters, held-out cross-entropy 0.220 nats a token.
"""

from ml_collections import ConfigDict

from configs.alfworld_long import long_config
from configs.tiny import imitation_config

STAGES = {
    "1": {
        "sft.learn_prompts": True,
        "sft.episodes": 5000,
        "sft.minibatch": 128,
        "optim.lr": 4e-3,
        "sft.demonstrator": {
            "random_fraction": 0.1,
            "detour_fraction": 0.5,
            "forget_fraction": 0.8,
        },
    },
    "2": {
        "seed": 1,
        "model.path": "runs/l1/model",
        "sft.episodes": 4000,
        "sft.minibatch": 64,
        "optim.lr": 2e-3,
        "sft.demonstrator": {
            "random_fraction": 0.05,
            "detour_fraction": 0.2,
            "forget_fraction": 0.6,
        },
    },
}


def get_config(stage: str = "1") -> ConfigDict:
    """The config of a stage, 1 or 2."""
    config = imitation_config(long_config(), STAGES, stage)
    config.env.generate.splits = {"train": 4000, "valid_unseen": 128}
    return config.lock()
