"""GiGPO on Sokoban as text, on a laptop: 30 iterations of 16 rooms x 8 episodes.

python -m gigpo_jax.main --config=configs/sokoban_text_tiny.py --workdir=runs/sokoban_text

Rooms of 6 x 6 with one box, at most 15 moves. The observation is the room, a letter a cell. A policy of 0.2 M
parameters that imitated a mediocre demonstrator (sokoban_text_tiny_sft.py). docs/vision.md has the results.
"""

from ml_collections import ConfigDict

from configs.tiny import tiny_config


def sokoban_text_config() -> ConfigDict:
    """What the warm start and the training share, unlocked: prompts of 38 tokens, responses of 5."""
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
    config = sokoban_text_config()
    config.model.path = "models/sokoban_text_tiny"
    config.rl.kl_coef = 0.0
    config.optim.lr = 6e-4
    config.optim.schedule = "linear"
    config.train.iterations = 30
    config.train.groups = 16
    config.train.group_size = 8
    config.train.minibatch = 256
    config.train.save_rollouts = 5
    config.eval.panel = "test"
    config.eval.every = 5
    config.eval.greedy = True
    config.checkpoint.every = 5
    return config.lock()
