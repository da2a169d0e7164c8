"""The warm start of webshop_long.py: models/webshop_tiny imitates long episodes, in two stages.

    c=configs/webshop_long_sft.py
    w=runs/shop_long
    gigpo sft --config=$c:1 --workdir=${w}1 --out=${w}1/model
    gigpo sft --config=$c:2 --workdir=${w}2 --out=models/webshop_long

The demonstrator clicks at random, searches for three words only, and forgets options; in the second
stage less often.

Hardware: 2 cores that many programs shared; 7 and 5 minutes (114 and 77 updates). Result: 1.0 M
parameters; the header of webshop_long.py says what it scores.
"""

from ml_collections import ConfigDict

from configs.tiny import imitation_config
from configs.webshop_long import long_config

STAGES = {
    "1": {
        "seed": 3,  # other episodes than in webshop_tiny_sft.py
        "model.path": "models/webshop_tiny",
        "sft.episodes": 900,
        "sft.demonstrator": {
            "random_fraction": 0.12,
            "vague_fraction": 0.2,
            "forget_fraction": 0.15,
            "max_steps": 24,
            "brief": True,
        },
    },
    "2": {
        "seed": 4,
        "model.path": "runs/shop_long1/model",
        "sft.episodes": 700,
        "sft.demonstrator": {
            "random_fraction": 0.04,
            "vague_fraction": 0.1,
            "forget_fraction": 0.1,
            "max_steps": 24,
            "brief": True,
        },
    },
}


def get_config(stage: str = "1") -> ConfigDict:
    """The config of a stage, 1 or 2."""
    config = imitation_config(long_config(), STAGES, stage)
    config.sft.minibatch = 64
    config.optim.lr = 6e-4
    return config.lock()
