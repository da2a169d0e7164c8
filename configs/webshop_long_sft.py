"""The warm start of webshop_long.py: models/webshop_tiny learns from a demonstrator with long episodes, in two stages.

c=configs/webshop_long_sft.py
python -m gigpo_jax.main --mode=sft --config=$c:1 --workdir=runs/shop_long1 --out=runs/shop_long1/model
python -m gigpo_jax.main --mode=sft --config=$c:2 --workdir=runs/shop_long2 --out=models/webshop_long

The demonstrator clicks at random, searches for three words only, and forgets options; in the second stage less often.

Hardware: 2 cores that many programs shared; 7 and 5 minutes (114 and 77 updates). Result: 1.0 M parameters; the header
of webshop_long.py says what it scores.
"""

from ml_collections import ConfigDict

from configs.webshop_long import long_config

STAGES = {"1": (0.12, 0.2, 0.15), "2": (0.04, 0.1, 0.1)}  # random, vague and forget fraction


def get_config(stage: str = "1") -> ConfigDict:
    """The config of a stage, 1 or 2."""
    if stage not in STAGES:
        raise ValueError(f"configs/webshop_long_sft.py:{stage}: no such stage; choose 1 or 2")
    config = long_config()
    config.seed = 2 + int(stage)  # other episodes than those of webshop_tiny_sft.py
    config.model.path = "models/webshop_tiny" if stage == "1" else "runs/shop_long1/model"
    config.optim.b2 = 0.98
    config.optim.schedule = "cosine"
    config.optim.warmup_fraction = 0.02
    config.sft.episodes, config.sft.minibatch, config.optim.lr = 900 if stage == "1" else 700, 64, 6e-4
    names = ("random_fraction", "vague_fraction", "forget_fraction")
    config.sft.demonstrator = ConfigDict(
        dict(zip(names, STAGES[stage], strict=True)) | {"max_steps": 24, "brief": True}
    )
    return config.lock()
