"""WebShop with a high limit on actions, where detours need not lose.

    gigpo train --config=configs/webshop_long.py --workdir=runs/webshop_long
    gigpo compare --config=configs/webshop_long.py \
        --algorithms=grpo,gigpo --seeds=0,1

16 iterations of 8 tasks x 8 episodes. The generated catalogue of 1,000 products, at most 24
actions, a policy of 1.0 M parameters that imitated a mediocre demonstrator (webshop_long_sft.py).
With seed 100 it won 20% of the 64 episodes of the first iteration, in 6.5 actions in the mean.
docs/evidence.md has the protocol of the comparison.
"""

from ml_collections import ConfigDict

from configs.tiny import train_config
from configs.webshop_tiny import webshop_tiny_config


def long_config() -> ConfigDict:
    """The base of this experiment and its warm start, unlocked."""
    config = webshop_tiny_config()
    config.env.max_steps = 24
    config.engine.slots = 64
    return config


def get_config() -> ConfigDict:
    """The config."""
    config = train_config(long_config())
    config.model.path = "models/webshop_long"
    config.engine.decode_steps = 12
    config.train.iterations = 16
    config.train.groups = 8
    config.train.save_rollouts = 0
    config.eval.panel = "long_test"
    config.eval.every = 4
    config.eval.greedy = False
    config.checkpoint.every = 4
    return config.lock()
