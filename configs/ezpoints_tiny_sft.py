"""The warm start of ezpoints_tiny.py: imitation of a mediocre demonstrator, from random weights, in two stages.

c=configs/ezpoints_tiny_sft.py
python -m gigpo_jax.main --mode=sft --config=$c:1 --workdir=runs/ezpoints_tiny_sft1 --out=runs/ezpoints_tiny_sft1/model
python -m gigpo_jax.main --mode=sft --config=$c:2 --workdir=runs/ezpoints_tiny_sft2 --out=models/ezpoints_tiny

The first stage learns to read the cards, from a demonstrator that acts at random in 25% of its steps. The second
imitates one that does so in 50%, so that the policy tries more than one formula.

Hardware: one of 2 cores that other programs kept busy, 10 and 0.5 minutes (226 and 30 updates). Result: 0.28 M
parameters, held-out cross-entropy 0.098 and then 0.131 nats a response token; docs/vision.md says what it scores.
"""

from ml_collections import ConfigDict

from configs.ezpoints_tiny import with_cards
from configs.sokoban_tiny_sft import get_config as sokoban_config

STAGES = {  # random fraction; episodes, epochs, rate
    "1": (0.25, (2000, 2, 2e-3)),
    "2": (0.5, (600, 1, 3e-4)),
}


def get_config(stage: str = "1") -> ConfigDict:
    """The config of a stage, 1 or 2."""
    config = with_cards(sokoban_config(stage).unlock())
    fraction, (config.sft.episodes, config.sft.epochs, config.optim.lr) = STAGES[stage]
    config.sft.demonstrator.random_fraction = fraction
    if stage == "2":
        config.model.path = "runs/ezpoints_tiny_sft1/model"
    return config.lock()
