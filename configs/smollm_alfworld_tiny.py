"""smollm_alfworld.py at the size of a laptop: small rooms, 9 actions, 2 tasks x 4 episodes.

    gigpo sft --config=configs/smollm_alfworld_tiny_sft.py --workdir=runs/alf_sft \
        --out=models/smollm2_alfworld_tiny
    gigpo train --config=configs/smollm_alfworld_tiny.py --workdir=runs/alf

The rooms and the panel of the quickstart; prompts with history and admissible actions, each step a
prompt of its own.
"""

from ml_collections import ConfigDict

from configs.smollm import smollm_config
from configs.tiny import tiny_config


def alfworld_tiny_config() -> ConfigDict:
    """The base of this experiment and its warm start, unlocked."""
    config = smollm_config()
    config.env.update(tiny_config().env)
    config.env.prompt = "full"
    config.sampling.max_prompt_tokens = 512
    config.sampling.max_response_tokens = 32
    config.batch.row_length = 1024
    return config


def get_config() -> ConfigDict:
    """The config."""
    config = alfworld_tiny_config()
    config.model.path = "models/smollm2_alfworld_tiny"
    config.optim.lr = 2e-4
    config.train.iterations = 12
    config.train.groups = 2
    config.train.group_size = 4
    config.train.minibatch = 72
    config.train.save_rollouts = 1
    config.eval.panel = "tiny_unseen"
    config.eval.temperature = 1.0
    config.eval.greedy = False
    config.eval.tasks = 32
    config.eval.every = 4
    config.checkpoint.every = 1
    return config.lock()
