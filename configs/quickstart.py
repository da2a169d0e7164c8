"""GiGPO on generated ALFWorld games, on a laptop.

python -m gigpo_jax.main --config=configs/quickstart.py --workdir=runs/quickstart
"""

from ml_collections import ConfigDict

from configs.tiny import tiny_config


def get_config() -> ConfigDict:
    """The config."""
    config = tiny_config()
    config.model.path = "models/alfworld_tiny"
    config.engine.slots = 128
    config.engine.decode_steps = 12
    config.rl.kl_coef = 0.0
    config.optim.lr = 2e-4
    config.optim.schedule = "linear"
    config.train.iterations = 30
    config.train.groups = 16
    config.train.group_size = 8
    config.train.minibatch = 256
    config.train.save_rollouts = 5
    config.eval.panel = "tiny_unseen"
    config.eval.every = 5
    config.eval.greedy = True
    config.checkpoint.every = 5
    return config.lock()
