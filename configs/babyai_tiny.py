"""GiGPO on BabyAI as text, on a laptop: 20 iterations of 16 levels x 8 episodes.

pip install -e ".[minigrid]"
gigpo train --config=configs/babyai_tiny.py --workdir=runs/babyai

Half of the levels are BabyAI-GoToLocalS6N3 (go to one of 3 objects), half BabyAI-PickupDist (pick
up one of 5). The prompt is the mission and the present view. A policy of 0.2 M parameters that
imitated MiniGrid's bot with random actions (babyai_tiny_sft.py). The warm
start won 23% of the first 128 training episodes (go 30%, pick 16%; seed 100). docs/babyai.md
compares algorithms after 6 iterations; all 20 have not been run, and the learning rate is the one
of sokoban_text_tiny.py.
"""

from ml_collections import ConfigDict

from configs.tiny import tiny_config, train_config

LEVELS = {"go": "BabyAI-GoToLocalS6N3-v0", "pick": "BabyAI-PickupDist-v0"}


def babyai_config() -> ConfigDict:
    """The base of this experiment and its warm start, unlocked; responses have at most 6 tokens."""
    config = tiny_config()
    config.env.generate = ConfigDict()
    mix = {label: {"name": f"gymnasium:minigrid:{level}"} for label, level in LEVELS.items()}
    config.env.mix = ConfigDict(mix)
    config.env.max_steps = 16
    config.env.history = 0
    config.env.prompt = "view"
    config.env.show_admissible = False
    config.sampling.max_prompt_tokens = 56
    config.sampling.max_response_tokens = 8
    config.model.shape.update(hidden_size=64, intermediate_size=192)
    config.engine.slots = 128
    config.engine.decode_steps = 8
    config.engine.prefill_buckets = (32, 56)
    return config


def get_config() -> ConfigDict:
    """The config."""
    config = train_config(babyai_config())
    config.model.path = "models/babyai_tiny"
    config.train.iterations = 20
    config.optim.lr = 6e-4
    config.eval.every = 10
    config.env.mix.go.panel = "babyai_goto_tiny"
    config.env.mix.pick.panel = "babyai_pickup_tiny"
    return config.lock()
