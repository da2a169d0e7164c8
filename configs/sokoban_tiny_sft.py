"""The warm start of sokoban_tiny.py: imitation of a mediocre demonstrator, from random weights, in two stages.

c=configs/sokoban_tiny_sft.py
python -m gigpo_jax.main --mode=sft --config=$c:1 --workdir=runs/sokoban_tiny_sft1 --out=runs/sokoban_tiny_sft1/model
python -m gigpo_jax.main --mode=sft --config=$c:2 --workdir=runs/sokoban_tiny_sft2 --out=models/sokoban_tiny

As sokoban_text_tiny_sft.py, with less noise: the demonstrators act at random in 10% and then in 80% of their steps.

Hardware: one of 2 cores that other programs kept busy, 10 and 2 minutes (572 and 96 updates). Result: 0.28 M
parameters, held-out cross-entropy 0.103 and then 0.277 nats a response token; docs/vision.md says what it scores.
"""

from ml_collections import ConfigDict

from configs.sokoban_text_tiny_sft import get_config as text_config
from configs.sokoban_tiny import with_pictures

STAGES = {  # random fraction; episodes, epochs, rate
    "1": (0.1, (4000, 2, 2e-3)),
    "2": (0.8, (600, 1, 3e-4)),
}


def get_config(stage: str = "1") -> ConfigDict:
    """The config of a stage, 1 or 2."""
    config = with_pictures(text_config(stage).unlock())
    fraction, (config.sft.episodes, config.sft.epochs, config.optim.lr) = STAGES[stage]
    config.sft.demonstrator.random_fraction = fraction
    config.sft.minibatch = 64
    if stage == "2":
        config.model.path = "runs/sokoban_tiny_sft1/model"
    return config.lock()
