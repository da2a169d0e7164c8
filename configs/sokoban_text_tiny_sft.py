"""The warm start of sokoban_text_tiny.py: imitation of a mediocre demonstrator, from random weights, in two stages.

c=configs/sokoban_text_tiny_sft.py
python -m gigpo_jax.main --mode=sft --config=$c:1 --workdir=runs/sokoban_sft1 --out=runs/sokoban_sft1/model
python -m gigpo_jax.main --mode=sft --config=$c:2 --workdir=runs/sokoban_sft2 --out=models/sokoban_text_tiny

The first stage learns to read the room, from a demonstrator that acts at random in 30% of its steps. The second
imitates one that does so in 85%: it is to play worse, so that there is something to learn.

Hardware: one of 2 cores that other programs kept busy, 43 and 2 minutes (772 and 105 updates). Result: 0.2 M
parameters, held-out cross-entropy 0.177 and then 0.276 nats a response token; docs/vision.md says what it scores.
"""

from ml_collections import ConfigDict

from configs.sokoban_text_tiny import sokoban_text_config

STAGES = {  # random fraction; episodes, epochs, rate
    "1": (0.3, (8000, 2, 4e-3)),
    "2": (0.85, (1200, 1, 1e-3)),
}


def get_config(stage: str = "1") -> ConfigDict:
    """The config of a stage, 1 or 2."""
    if stage not in STAGES:
        raise ValueError(f"configs/sokoban_text_tiny_sft.py:{stage}: no such stage; choose 1 or 2")
    config = sokoban_text_config()
    config.seed = int(stage) - 1
    fraction, (config.sft.episodes, config.sft.epochs, config.optim.lr) = STAGES[stage]
    config.sft.demonstrator = ConfigDict({"random_fraction": fraction})
    config.sft.minibatch = 128
    config.optim.b2 = 0.98
    config.optim.schedule = "cosine"
    config.optim.warmup_fraction = 0.02
    if stage == "2":
        config.model.path = "runs/sokoban_sft1/model"
    return config.lock()
