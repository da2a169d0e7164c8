"""GiGPO on NumberLine from pictures with the settings of the authors' script, 20 iterations.

    gigpo train --config=configs/numberline.py:3b --workdir=runs/numberline \
        --config.model.path=/models/Qwen2.5-VL-3B-Instruct

Moves on a line from one number to another, at most 10. The authors' script trains
Qwen2-VL-2B-Instruct, an architecture that this package does not have; its other settings are here.

Hardware: two GPUs with 80 GB (--config.mesh.fsdp=2). Expected: the authors' README reports 100%
success with their model. This implementation has not been run at that size yet.
"""

from ml_collections import ConfigDict

from configs.sokoban import picture_config


def get_config(variant: str = "3b") -> ConfigDict:
    """The config of a model size, 3b."""
    if variant != "3b":
        raise ValueError("no such variant; choose 3b")
    config = picture_config()
    config.env.name = "numberline"
    config.env.max_steps = 10
    config.env.history = 0
    config.train.iterations = 20
    config.train.groups = 16
    config.train.minibatch = 16
    return config.lock()
