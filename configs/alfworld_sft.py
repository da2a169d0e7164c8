"""A warm start for ALFWorld: a published Qwen2.5 model imitates the expert for one epoch.

    gigpo sft --config=configs/alfworld_sft.py \
        --out=models/alfworld_sft --config.model.path=/models/Qwen2.5-1.5B-Instruct \
        --config.env.options.data=GAMES

GAMES: generated games (`gigpo envs alfworld generate`); the expert knows their
wordings. Hardware: one GPU with 80 GB for 1.5B. Not yet run at that size. Then train from
models/alfworld_sft with configs/alfworld.py.
"""

from ml_collections import ConfigDict

from configs.alfworld import get_config as train_config


def get_config() -> ConfigDict:
    """The config."""
    config = train_config("1.5b").unlock()
    config.sft.episodes = 2000
    config.sft.epochs = 1
    config.sft.minibatch = 64
    config.optim.lr = 1e-5
    config.optim.schedule = "cosine"
    config.optim.warmup_fraction = 0.03
    return config.lock()
