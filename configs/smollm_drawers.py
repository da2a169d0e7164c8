"""GiGPO with SmolLM2-135M-Instruct on a laptop: find the treasure in a row of drawers.

gigpo train --config=configs/smollm_drawers.py --workdir=runs/drawers
"""

from ml_collections import ConfigDict

from configs.smollm import smollm_config


def drawers_config() -> ConfigDict:
    """The base of this experiment and its warm start, unlocked."""
    config = smollm_config()
    config.env.name = "example"
    config.env.max_steps = 8
    # Without the list of admissible actions: it is a third of a conversation's tokens.
    config.env.show_admissible = False
    config.env.options = ConfigDict({"drawers": 4, "games": 1024})
    config.sampling.max_prompt_tokens = 460
    config.sampling.max_response_tokens = 24
    config.batch.row_length = 1024
    return config


def get_config() -> ConfigDict:
    """The config."""
    config = drawers_config()
    config.model.path = "models/smollm2_drawers"
    config.optim.lr = 2e-4
    config.train.iterations = 12
    config.train.groups = 4
    config.train.group_size = 8
    config.train.minibatch = 128
    config.train.save_rollouts = 1
    config.eval.panel = "test"
    config.eval.temperature = 1.0
    config.eval.every = 0
    config.checkpoint.every = 1
    return config.lock()
