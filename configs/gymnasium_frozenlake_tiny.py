"""GiGPO on Gymnasium's own FrozenLake-v1, on a laptop: 30 iterations of 16 seeds x 8 episodes.

    pip install -e ".[gymnasium]"
    gigpo train --config=configs/gymnasium_frozenlake_tiny.py --workdir=runs/lake

The lake of 4 x 4 cells that Gymnasium has, at most 20 moves; a fifth of them slips to a side
(success_rate=0.8). The warm start is from frozenlake_tiny.py, which saw other lakes, without
slips. Training and the panel have the same lake and other slips: the seeds are disjoint.

Hardware: one of 2 cores that other programs kept busy, 9 minutes.
Result, seed 0: training episodes won 3.7% in the first four iterations and 18.8% in the last
four; the panel of 128 seeds 7.0% before and 37.5% after at temperature 0.4, greedy 10.2% before and
68.8% after. The best policy wins 78.5% in 20 moves (value iteration on Gymnasium's table). One run:
the interval of such a panel is 17 points wide.
"""

from ml_collections import ConfigDict

from configs.frozenlake_tiny import frozenlake_config
from configs.tiny import train_config


def get_config() -> ConfigDict:
    """The config."""
    config = train_config(frozenlake_config())
    config.env.name = "gymnasium:FrozenLake-v1"
    config.env.prompt = "gigpo_jax.envs.games:show_observation"  # as in the warm start
    config.env.options = ConfigDict({"kwargs": {"success_rate": 0.8}})
    config.env.max_steps = 20
    config.sampling.max_prompt_tokens = 32
    config.engine.prefill_buckets = (32,)
    config.model.path = "models/frozenlake_tiny"
    config.train.iterations = 30
    config.optim.lr = 6e-4
    config.eval.panel = "frozenlake_test"
    return config.lock()
