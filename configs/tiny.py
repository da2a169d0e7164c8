"""The base of the experiments for laptops: small rooms, short prompts, a small model.

Rooms of 4 receptacles and 3 objects, 9 actions an episode, prompts of about 48 tokens (67 at most),
0.8 M parameters with a word-level tokenizer. Not an experiment itself: quickstart.py,
alfworld_long.py, webshop_tiny.py, search_tiny.py, sokoban_text_tiny.py and their warm starts build
on it.
"""

from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from gigpo_jax.config import default_config


def tiny_config() -> ConfigDict:
    """The base of the tiny experiments, unlocked."""
    config = default_config().unlock()
    # Sums are split between threads: equal numbers on machines with any number of cores.
    config.compilation.cpu_threads = 2
    config.env.generate = ConfigDict(
        {
            "splits": {"train": 2000, "valid_unseen": 128},
            "size": "small",
            "seed": 0,
            "receptacles": 4,
            "objects": 3,
        }
    )
    config.env.max_steps = 9
    config.env.history = 4
    config.env.prompt = "compact"
    config.sampling.max_prompt_tokens = 80
    config.sampling.max_response_tokens = 16
    config.model.compute_dtype = "float32"
    config.model.remat = "none"
    config.model.unroll = 4
    config.engine.dtype = "float32"
    config.engine.slots = 128
    config.engine.prefill_buckets = (64, 80)
    config.engine.prefill_rows = (32,)
    config.batch.row_length = 768
    config.batch.rows = 1
    config.batch.fit_rows = False
    config.batch.logprob_chunk = 4096
    return config


def train_config(config: ConfigDict) -> ConfigDict:
    """Changes a base to a training run: 30 iterations of 16 tasks x 8 episodes."""
    config.rl.kl_coef = 0.0
    config.optim.lr = 2e-4
    config.optim.schedule = "linear"
    config.train.iterations = 30
    config.train.groups = 16
    config.train.group_size = 8
    config.train.minibatch = 256
    config.train.save_rollouts = 5
    config.eval.every = 5
    config.eval.greedy = True
    config.checkpoint.every = 5
    return config


def imitation_config(
    config: ConfigDict, stages: Mapping[str, Mapping[str, Any]], stage: str
) -> ConfigDict:
    """Changes a base to a stage of a warm start.

    Args:
      config: base, unlocked.
      stages: the keys that differ between stages, such as `optim.lr`, by the name of the stage.
      stage: name of the stage.

    Raises:
      ValueError: there is no such stage.
    """
    if stage not in stages:
        *names, last = stages
        raise ValueError(f"no such stage; choose {', '.join(names)} or {last}")
    config.model.shape.rope_theta = 1e4
    config.optim.b2 = 0.98
    config.optim.schedule = "cosine"
    config.optim.warmup_fraction = 0.02
    for key, value in stages[stage].items():
        section, _, name = key.rpartition(".")
        target = config[section] if section else config
        target[name] = ConfigDict(value) if isinstance(value, dict) else value
    return config
