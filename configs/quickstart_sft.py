"""The warm start of the quickstart: imitation of a mediocre demonstrator, from random weights.

python -m gigpo_jax.main --mode=sft --config=configs/quickstart_sft.py --out=models/alfworld_tiny
"""

from ml_collections import ConfigDict

from configs.tiny import tiny_config


def get_config() -> ConfigDict:
    """The config."""
    config = tiny_config()
    config.env.generate.splits = {"train": 8000, "valid_unseen": 128}
    config.sft.episodes = 14000
    config.sft.minibatch = 128
    config.sft.demonstrator = ConfigDict(
        {"random_share": 0.2, "detour_share": 0.2, "idle_share": 0.1, "forget_share": 0.85}
    )
    config.sft.learn_prompts = True
    config.optim.lr = 2e-3
    config.optim.b2 = 0.98
    config.optim.schedule = "cosine"
    config.optim.warmup_share = 0.02
    return config.lock()
