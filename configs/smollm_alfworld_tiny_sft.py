"""The warm start of smollm_alfworld_tiny.py: one epoch over a mediocre demonstrator.

    gigpo sft --config=configs/smollm_alfworld_tiny_sft.py --workdir=runs/alf_sft \
        --out=models/smollm2_alfworld_tiny
"""

from ml_collections import ConfigDict

from configs.smollm_alfworld_tiny import alfworld_tiny_config


def get_config() -> ConfigDict:
    """The config."""
    config = alfworld_tiny_config()
    config.sft.episodes = 32
    config.sft.epochs = 1
    config.sft.minibatch = 32
    # As in smollm_alfworld_sft.py.
    config.sft.demonstrator = ConfigDict(
        {"random_fraction": 0.05, "detour_fraction": 0.2, "forget_fraction": 0.6}
    )
    config.optim.lr = 1e-3
    return config.lock()
