"""GiGPO on FrozenLake as text, on a laptop: 20 iterations of 16 lakes x 8 episodes.

    gigpo train --config=configs/frozenlake_tiny.py --workdir=runs/frozenlake

Lakes of 4 x 4 cells without slips, at most 15 moves. A policy of 0.1 M parameters that imitated a
mediocre demonstrator (frozenlake_tiny_sft.py).

Hardware: one of 2 cores that other programs kept busy, 7 minutes (51 s of CPU time).
Result, seed 0: training episodes won 27% in the first four iterations (20, 11, 37, 38) and 48% in
the last four (34, 62, 39, 56); the panel of 128 other lakes 37.5% before and 45.3% after, greedy
26.6% before and after. One run: the interval of such a panel is 17 points wide.

With `--config.env.options.slippery=True` the same
lakes are slippery.
"""

from ml_collections import ConfigDict

from configs.tiny import tiny_config, train_config


def frozenlake_config() -> ConfigDict:
    """The base of this experiment and its warm start, unlocked."""
    config = tiny_config()
    config.env.name = "frozenlake"
    config.env.generate = ConfigDict()
    config.env.max_steps = 15
    config.env.history = 0
    config.env.show_admissible = False
    config.sampling.max_prompt_tokens = 24
    config.sampling.max_response_tokens = 8
    config.model.shape.update(
        hidden_size=64, intermediate_size=192, num_layers=2, num_heads=2, num_kv_heads=1
    )
    config.model.unroll = 2
    config.engine.slots = 128
    config.engine.decode_steps = 8
    config.engine.prefill_buckets = (24,)
    return config


def get_config() -> ConfigDict:
    """The config."""
    config = train_config(frozenlake_config())
    config.model.path = "models/frozenlake_tiny"
    config.train.iterations = 20
    config.optim.lr = 6e-4
    config.eval.panel = "test"
    return config.lock()
