"""GiGPO on Sokoban from pictures, on a laptop: 10 iterations of 16 rooms x 8 episodes.

    gigpo train --config=configs/sokoban_tiny.py --workdir=runs/sokoban_tiny

Rooms of 6 x 6 with one box, at most 15 moves. The observation is a picture of 168 x 168 pixels: 36
tokens. A policy of 0.28 M parameters with a vision tower, which imitated a mediocre demonstrator
(sokoban_tiny_sft.py). docs/vision.md has the results.
"""

from ml_collections import ConfigDict

from configs.sokoban_text_tiny import get_config as text_config


def with_pictures(config: ConfigDict) -> ConfigDict:
    """Changes a config of the text run, unlocked."""
    config.env.options = ConfigDict()
    config.model.shape.rope_theta = 2.0  # the positions of an image are 0 to 5 along each axis
    config.model.shape.initializer_range = 0.1  # imitation finds positions sooner than from 0.02
    config.model.shape.vision.update(depth=1, hidden_size=32)
    config.batch.row_length = 48  # a sample
    config.batch.rows = 32
    return config


def get_config() -> ConfigDict:
    """The config."""
    config = with_pictures(text_config().unlock())
    config.model.path = "models/sokoban_tiny"
    config.train.iterations = 10
    return config.lock()
