"""The warm start of the quickstart: imitation of a mediocre demonstrator, from random weights, in two stages.

python -m gigpo_jax.main --mode=sft --config=configs/quickstart_sft.py:1 --workdir=runs/sft1 --out=runs/sft1/model
python -m gigpo_jax.main --mode=sft --config=configs/quickstart_sft.py:2 --workdir=runs/sft2 --out=models/alfworld_tiny

The first stage learns to read: it predicts prompts as well as responses, of a demonstrator that wanders half of the
time. The second learns to act, from responses alone, of one that wanders a quarter of the time and puts four objects of
five down without having cleaned, heated or cooled them. What is left to learn is to act well.

Hardware: 2 cores; 20 and 13 minutes (1,201 and 1,533 updates) on a busy machine. Result: 0.8 M parameters, held-out
cross-entropy 0.150 nats a token; the header of quickstart.py says what it scores.
"""

from ml_collections import ConfigDict

from configs.tiny import tiny_config


def get_config(stage: str = "1") -> ConfigDict:
    """The config of a stage, 1 or 2."""
    if stage not in ("1", "2"):
        raise ValueError(f"configs/quickstart_sft.py:{stage}: no such stage; choose 1 or 2")
    config = tiny_config()
    config.env.max_steps = 12
    config.env.generate.splits = {"train": 8000, "valid_unseen": 128}
    config.optim.b2 = 0.98
    config.optim.schedule = "cosine"
    config.optim.warmup_fraction = 0.02
    if stage == "1":
        fractions, config.sft.learn_prompts = (0.2, 0.2, 0.1, 0.85), True
        config.sft.episodes, config.sft.minibatch, config.optim.lr = 14000, 128, 2e-3
    else:
        fractions, config.seed, config.model.path = (0.1, 0.1, 0.05, 0.8), 1, "runs/sft1/model"
        config.sft.episodes, config.sft.minibatch, config.optim.lr = 10000, 64, 1.2e-3
    names = ("random_fraction", "detour_fraction", "idle_fraction", "forget_fraction")
    config.sft.demonstrator = ConfigDict(dict(zip(names, fractions, strict=True)))
    return config.lock()
