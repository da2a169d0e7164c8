"""GiGPO on EZPoints from pictures with the settings of the authors' scripts, 100 iterations.

    gigpo train --config=configs/ezpoints.py:3b --workdir=runs/ezpoints \
        --config.model.path=/models/Qwen2.5-VL-3B-Instruct

Two cards, at most 8 symbols. A picture takes 42 tokens; in the authors' runs pictures of another
size take 121. Formulas have Python's value as there (compat=True).

Hardware: two GPUs with 80 GB (--config.mesh.fsdp=2). Expected: the authors' README reports 100%
success. This implementation has not been run at that size yet.
"""

from ml_collections import ConfigDict

from configs.sokoban import picture_config


def get_config(variant: str = "3b") -> ConfigDict:
    """The config of a model size, 3b."""
    if variant != "3b":
        raise ValueError("no such variant; choose 3b")
    config = picture_config()
    config.env.name = "ezpoints"
    config.env.options = ConfigDict({"compat": True})
    config.env.max_steps = 8
    config.env.history = 0
    config.train.iterations = 100
    config.train.groups = 16
    config.train.minibatch = 128
    return config.lock()
