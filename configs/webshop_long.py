"""WebShop with a high limit on actions, where detours need not lose: 16 iterations of 8 tasks x 8 episodes.

python -m gigpo_jax.main --config=configs/webshop_long.py --workdir=runs/webshop_long
python -m gigpo_jax.compare --config=configs/webshop_long.py --algorithms=grpo,gigpo --seeds=0,1

The generated catalogue of 1,000 products, at most 24 actions, a policy of 1.0 M parameters that imitated a mediocre
demonstrator (webshop_long_sft.py). With seed 100 it won 20% of the 64 episodes of the first iteration, in 6.5 actions
in the mean. docs/evidence.md has the protocol of the comparison.
"""

from ml_collections import ConfigDict

from configs.webshop_tiny import webshop_tiny_config


def long_config() -> ConfigDict:
    """What the warm start (webshop_long_sft.py) and the training share, unlocked."""
    config = webshop_tiny_config()
    config.env.max_steps = 24
    config.env.options.max_steps = 24
    config.engine.slots = 64
    return config


def get_config() -> ConfigDict:
    """The config."""
    config = long_config()
    config.model.path = "models/webshop_long"
    config.engine.decode_steps = 12
    config.rl.kl_coef = 0.0
    config.optim.lr = 2e-4
    config.optim.schedule = "linear"
    config.train.iterations = 16
    config.train.groups = 8
    config.train.group_size = 8
    config.train.minibatch = 256
    config.train.save_rollouts = 0
    config.eval.panel = "long_test"
    config.eval.every = 4
    config.checkpoint.every = 4
    return config.lock()
