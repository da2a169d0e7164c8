"""GiGPO on Blackjack from pictures with the settings of the authors' script, 200 iterations.

    gigpo train --config=configs/blackjack.py:3b --workdir=runs/blackjack \
        --config.model.path=/models/Qwen2.5-VL-3B-Instruct

Hit or stand, at most 15 times; a win is a success.

Hardware: two GPUs with 80 GB (--config.mesh.fsdp=2). No result was published. This implementation
has not been run at that size yet.
"""

from ml_collections import ConfigDict

from configs.sokoban import picture_config


def get_config(variant: str = "3b") -> ConfigDict:
    """The config of a model size, 3b."""
    if variant != "3b":
        raise ValueError("no such variant; choose 3b")
    config = picture_config()
    config.env.name = "blackjack"
    config.env.max_steps = 15
    config.env.history = 0
    config.train.iterations = 200
    config.train.groups = 32
    config.train.minibatch = 32
    config.eval.every = 10
    return config.lock()
