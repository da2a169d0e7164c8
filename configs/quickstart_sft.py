"""The warm start of the quickstart: imitation of a mediocre demonstrator, in two stages.

    c=configs/quickstart_sft.py
    gigpo sft --config=$c:1 --workdir=runs/sft1 --out=runs/sft1/model
    gigpo sft --config=$c:2 --workdir=runs/sft2 --out=models/alfworld_tiny

The first stage learns to read: it predicts prompts as well as responses, of a demonstrator that
wanders half of the time. The second learns to act, from responses alone, of one that wanders a
quarter of the time and puts four objects of five down without having cleaned, heated or cooled
them. What is left to learn is to act well.

Hardware: 2 cores; 20 and 13 minutes (1,201 and 1,533 updates) on a busy machine. Result: 0.8 M
parameters, held-out cross-entropy 0.150 nats a token; the header of quickstart.py says what it
scores.
"""

from ml_collections import ConfigDict

from configs.tiny import imitation_config, tiny_config

STAGES = {
    "1": {
        "sft.learn_prompts": True,
        "sft.episodes": 14000,
        "sft.minibatch": 128,
        "optim.lr": 2e-3,
        "sft.demonstrator": {
            "random_fraction": 0.2,
            "detour_fraction": 0.2,
            "idle_fraction": 0.1,
            "forget_fraction": 0.85,
        },
    },
    "2": {
        "seed": 1,
        "model.path": "runs/sft1/model",
        "sft.episodes": 10000,
        "sft.minibatch": 64,
        "optim.lr": 1.2e-3,
        "sft.demonstrator": {
            "random_fraction": 0.1,
            "detour_fraction": 0.1,
            "idle_fraction": 0.05,
            "forget_fraction": 0.8,
        },
    },
}


def get_config(stage: str = "1") -> ConfigDict:
    """The config of a stage, 1 or 2."""
    config = imitation_config(tiny_config(), STAGES, stage)
    config.env.max_steps = 12
    config.env.generate.splits = {"train": 8000, "valid_unseen": 128}
    return config.lock()
