"""The warm start of smollm_drawers.py: a short imitation, which teaches the format.

    gigpo sft --config=configs/smollm_drawers_sft.py --workdir=runs/drawers_sft \
        --out=models/smollm2_drawers
"""

from ml_collections import ConfigDict

from configs.smollm_drawers import drawers_config


def get_config() -> ConfigDict:
    """The config."""
    config = drawers_config()
    config.sft.episodes = 24
    config.sft.epochs = 1
    config.sft.minibatch = 32
    config.sft.demonstrator = ConfigDict({"random_fraction": 1.0})
    config.optim.lr = 1e-3
    config.batch.row_length = 512
    return config.lock()
