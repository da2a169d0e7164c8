"""The warm start of webshop_tiny.py: imitation of a mediocre demonstrator, in three stages.

    c=configs/webshop_tiny_sft.py
    gigpo sft --config=$c:1 --workdir=runs/shop1 --out=runs/shop1/model
    gigpo sft --config=$c:2 --workdir=runs/shop2 --out=runs/shop2/model
    gigpo sft --config=$c:3 --workdir=runs/shop3 --out=models/webshop_tiny

The first stage learns to read: it predicts prompts as well as responses, of a demonstrator that
clicks at random at times. The second learns to act, from responses alone. The third learns to copy
exactly, from one that makes a single mistake: it forgets every second option. What is left to learn
is to choose them.

Hardware: 2 cores; 615, 389 and 388 updates in 46, 8 and 13 minutes on a machine that several other
programs kept busy. Result: 1.0 M parameters, held-out cross-entropy 0.077 nats a token; the header
of webshop_tiny.py says what it scores. The committed model's first stage imitated the expert as it
was before its searches named options twice.
"""

from ml_collections import ConfigDict

from configs.tiny import imitation_config
from configs.webshop_tiny import webshop_tiny_config

STAGES = {
    "1": {
        "sft.learn_prompts": True,
        "sft.episodes": 14000,
        "sft.minibatch": 128,
        "optim.lr": 2e-3,
        "sft.demonstrator": {
            "random_fraction": 0.1,
            "vague_fraction": 0.2,
            "forget_fraction": 0.3,
            "max_steps": 8,
            "brief": True,
        },
    },
    "2": {
        "seed": 1,
        "model.path": "runs/shop1/model",
        "sft.episodes": 5000,
        "sft.minibatch": 64,
        "optim.lr": 1.2e-3,
        "sft.demonstrator": {
            "random_fraction": 0.1,
            "vague_fraction": 0.3,
            "forget_fraction": 0.6,
            "max_steps": 8,
            "brief": True,
        },
    },
    "3": {
        "seed": 2,
        "model.path": "runs/shop2/model",
        "sft.episodes": 6000,
        "sft.minibatch": 64,
        "optim.lr": 1.2e-3,
        "sft.demonstrator": {
            "random_fraction": 0.0,
            "vague_fraction": 0.0,
            "forget_fraction": 0.5,
            "max_steps": 6,  # the demonstrator hurries
            "brief": True,
        },
    },
}


def get_config(stage: str = "1") -> ConfigDict:
    """The config of a stage, 1, 2 or 3."""
    return imitation_config(webshop_tiny_config(), STAGES, stage).lock()
