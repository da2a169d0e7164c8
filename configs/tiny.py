"""What the experiments for laptops share: small rooms, short prompts, a small model with a word-level tokenizer.

Rooms of 4 receptacles and 3 objects, 9 actions an episode, prompts of about 48 tokens (67 at most), 0.8 M parameters.
Not an experiment itself: quickstart.py, alfworld_long.py, webshop_tiny.py, search_tiny.py, sokoban_text_tiny.py and
their warm starts build on it.
"""

from ml_collections import ConfigDict

from gigpo_jax.config import default_config


def tiny_config() -> ConfigDict:
    """The base of the tiny experiments, unlocked."""
    config = default_config().unlock()
    config.env.generate = ConfigDict(
        {"splits": {"train": 2000, "valid_unseen": 128}, "size": "small", "seed": 0, "receptacles": 4, "objects": 3}
    )
    config.env.max_steps = 9
    config.env.history = 4
    config.env.prompt = "compact"
    config.sampling.max_prompt_tokens = 80
    config.sampling.max_response_tokens = 16
    config.model.shape.update(
        hidden_size=128, intermediate_size=384, num_layers=4, num_heads=4, num_kv_heads=2, rope_theta=1e4
    )
    config.model.compute_dtype = "float32"
    config.model.remat = "none"
    config.model.unroll = 4
    config.engine.dtype = "float32"
    config.engine.prefill_buckets = (64, 80)
    config.engine.prefill_rows = (32,)
    config.batch.row_length = 768
    config.batch.rows = 1
    config.batch.logprob_chunk = 4096
    return config
