"""GiGPO on Sokoban as text, on a laptop: 30 iterations of 16 rooms x 8 episodes.

    gigpo train --config=configs/sokoban_text_tiny.py --workdir=runs/sokoban_text

Rooms of 6 x 6 with one box, at most 15 moves. The observation is the room, a letter a cell. A
policy of 0.2 M parameters that imitated a mediocre demonstrator (sokoban_text_tiny_sft.py).
docs/vision.md has the results.
"""

from ml_collections import ConfigDict

from configs.tiny import tiny_config, train_config


def sokoban_text_config() -> ConfigDict:
    """The base of this experiment and its warm start, unlocked.

    Prompts have 38 tokens, responses 5.
    """
    config = tiny_config()
    config.env.name = "sokoban"
    config.env.generate = ConfigDict()
    config.env.options = ConfigDict({"observation": "text"})
    config.env.max_steps = 15
    config.env.history = 0
    config.env.show_admissible = False
    config.sampling.max_prompt_tokens = 40
    config.sampling.max_response_tokens = 8
    config.model.shape.update(hidden_size=64, intermediate_size=192)
    config.engine.slots = 128
    config.engine.decode_steps = 8
    config.engine.prefill_buckets = (40,)
    return config


def get_config() -> ConfigDict:
    """The config."""
    config = train_config(sokoban_text_config())
    config.model.path = "models/sokoban_text_tiny"
    config.optim.lr = 6e-4
    config.eval.panel = "test"
    return config.lock()
