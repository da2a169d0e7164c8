"""GiGPO on EZPoints from pictures, on a laptop: 20 iterations of 16 deals x 8 episodes.

    gigpo train --config=configs/ezpoints_tiny.py --workdir=runs/ezpoints_tiny

Two cards, at most 8 symbols. The observation is a picture of 196 x 168 pixels, 42 tokens, and the
formula. A policy of 0.28 M parameters with a vision tower, which imitated a mediocre demonstrator
(ezpoints_tiny_sft.py). docs/vision.md has the results.
"""

from ml_collections import ConfigDict

from configs.sokoban_tiny import get_config as sokoban_config


def with_cards(config: ConfigDict) -> ConfigDict:
    """Changes a config of Sokoban from pictures: prompts of at most 56 tokens, responses of 12."""
    config.env.name = "ezpoints"
    config.env.max_steps = 8
    config.sampling.max_prompt_tokens = 56
    config.sampling.max_response_tokens = 12
    config.sampling.stop = ("}",)
    config.engine.prefill_buckets = (56,)
    config.batch.row_length = 68  # a sample
    return config


def get_config() -> ConfigDict:
    """The config."""
    config = with_cards(sokoban_config().unlock())
    config.model.path = "models/ezpoints_tiny"
    config.train.iterations = 20
    return config.lock()
