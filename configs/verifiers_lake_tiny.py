"""GiGPO on an environment of verifiers, on a laptop: 30 iterations of 16 tasks x 8 episodes.

    pip install -e ".[verifiers]"
    gigpo train --config=configs/verifiers_lake_tiny.py --workdir=runs/lake_moves

Run it in a clone: the environment is examples/verifiers/lake_moves.py. verifiers needs mcp 1, so
the extra `mcp` of gigpo_jax cannot be in the same environment of Python.

Two lakes of 4 x 4 cells, one after the other; the answer is the first move of a shortest path to
the goal. An episode is won if both moves are. The warm start is from frozenlake_tiny.py.

Hardware: one of 2 cores that other programs kept busy, 7 minutes.
Result, seed 0: training episodes won 26% in the first four iterations (26, 28, 23, 28) and 50% in
the last four (69, 62, 31, 38); the panel of 128 other pairs of lakes 50.0% before and 64.8% after
at temperature 0.4, greedy 65.6% before and after. One run: the interval of such a panel is 17
points wide.
"""

from ml_collections import ConfigDict

from configs.frozenlake_tiny import frozenlake_config
from configs.tiny import train_config


def get_config() -> ConfigDict:
    """The config."""
    config = train_config(frozenlake_config())
    config.env.name = "verifiers:examples.verifiers.lake_moves"
    config.env.prompt = "examples.verifiers.lake_moves:show_newest_message"
    config.env.max_steps = 2
    config.sampling.max_prompt_tokens = 32
    config.engine.prefill_buckets = (32,)
    config.model.path = "models/frozenlake_tiny"
    config.optim.lr = 6e-4
    config.eval.panel = "lake_moves_test"
    return config.lock()
