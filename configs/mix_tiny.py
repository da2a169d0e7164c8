"""GiGPO on two kinds of ALFWorld rooms at once, on a laptop: 30 iterations of 16 tasks x 8 episodes.

python -m gigpo_jax.main --config=configs/mix_tiny.py --workdir=runs/mix_tiny

Two groups of three are games of the quickstart's rooms (4 receptacles, 3 objects; panel `tiny_unseen`), the others are
games of larger rooms (8 receptacles, 4 objects; panel `long_unseen`). The start is the quickstart's policy. An example
of `env.mix` (docs/environments.md); no whole run is reported yet.
"""

from ml_collections import ConfigDict

from configs.quickstart import get_config as quickstart


def get_config() -> ConfigDict:
    """The config."""
    config = quickstart().unlock()
    rooms = config.env.generate.to_dict()
    config.env.generate, config.eval.panel = ConfigDict(), ""
    config.env.max_steps = 14
    config.sampling.max_prompt_tokens, config.engine.prefill_buckets = 96, (64, 80, 96)
    config.env.mix = ConfigDict(
        {
            "tiny": {"name": "alfworld", "weight": 2.0, "max_steps": 9, "generate": rooms, "panel": "tiny_unseen"},
            "long": {"name": "alfworld", "generate": rooms | {"receptacles": 8, "objects": 4}, "panel": "long_unseen"},
        }
    )
    return config.lock()
