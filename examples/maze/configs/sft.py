"""The warm start of train.py: a tiny model from random weights imitates an expert that errs.

gigpo sft --config=configs/sft.py --workdir=runs/maze_sft
"""

from ml_collections import ConfigDict
from train import maze_config  # its neighbour


def get_config() -> ConfigDict:
    config = maze_config()
    config.sft.demonstrator = ConfigDict({"random_fraction": 0.6})
    config.sft.episodes = 2000
    config.sft.epochs = 2
    config.sft.minibatch = 64
    config.optim.lr = 3e-3
    return config.lock()
