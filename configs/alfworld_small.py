"""The quickstart's experiment for longer: the whole curve.

python -m gigpo_jax.main --config=configs/alfworld_small.py --workdir=runs/alfworld_small

200 iterations of the quickstart's size on 2 cores; about an hour by the quickstart's pace. Not yet run to its end.
"""

from ml_collections import ConfigDict

from configs.quickstart import get_config as quickstart


def get_config() -> ConfigDict:
    """The config."""
    config = quickstart().unlock()
    config.train.iterations = 200
    config.train.save_rollouts = 20
    config.eval.every = 10
    config.checkpoint.every = 10
    return config.lock()
