"""The warm start of alfworld_long.py: imitation of a mediocre demonstrator, from random weights, in two stages.

python -m gigpo_jax.main --mode=sft --config=configs/alfworld_long_sft.py:1 --workdir=runs/l1 --out=runs/l1/model
python -m gigpo_jax.main --mode=sft --config=configs/alfworld_long_sft.py:2 --workdir=runs/l2 --out=models/alfworld_long

The first stage learns to read: it predicts prompts as well as responses, of a demonstrator that walks to a random place
half of the time. The second learns to act, from responses alone, of one that does so every fifth time and puts three
objects of five down without having cleaned, heated or cooled them.

Hardware: 2 cores; 15 and 7 minutes (927 and 807 updates) on a busy machine. Result: 0.17 M parameters, held-out
cross-entropy 0.220 nats a token.
"""

from ml_collections import ConfigDict

from configs.alfworld_long import long_config


def get_config(stage: str = "1") -> ConfigDict:
    """The config of a stage, 1 or 2."""
    if stage not in ("1", "2"):
        raise ValueError(f"configs/alfworld_long_sft.py:{stage}: no such stage; choose 1 or 2")
    config = long_config()
    config.env.generate.splits = {"train": 4000, "valid_unseen": 128}
    config.optim.b2 = 0.98
    config.optim.schedule = "cosine"
    config.optim.warmup_fraction = 0.02
    config.sft.learn_prompts = stage == "1"
    if stage == "1":
        shares = (0.1, 0.5, 0.8)
        config.sft.episodes, config.sft.minibatch, config.optim.lr = 5000, 128, 4e-3
    else:
        shares, config.seed, config.model.path = (0.05, 0.2, 0.6), 1, "runs/l1/model"
        config.sft.episodes, config.sft.minibatch, config.optim.lr = 4000, 64, 2e-3
    config.sft.demonstrator = ConfigDict(dict(zip(("random_fraction", "detour_fraction", "forget_fraction"), shares)))
    return config.lock()
