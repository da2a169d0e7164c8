"""The warm start of smollm_alfworld.py: one epoch over a mediocre demonstrator.

    gigpo sft --config=configs/smollm_alfworld_sft.py --workdir=runs/alf_sft \
        --out=models/smollm2_alfworld
"""

from ml_collections import ConfigDict

from configs.smollm_alfworld import alfworld_config


def get_config() -> ConfigDict:
    """The config."""
    config = alfworld_config()
    config.sft.episodes = 200
    config.sft.epochs = 1
    config.sft.minibatch = 64
    # As in alfworld_long_sft.py, whose policy wins 40% of its games.
    config.sft.demonstrator = ConfigDict(
        {"random_fraction": 0.05, "detour_fraction": 0.2, "forget_fraction": 0.6}
    )
    config.optim.lr = 5e-4
    return config.lock()
