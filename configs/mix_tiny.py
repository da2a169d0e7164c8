"""GiGPO on two kinds of ALFWorld rooms at once, on a laptop: 30 iterations.

    gigpo train --config=configs/mix_tiny.py --workdir=runs/mix_tiny

Two of every three groups are games of the quickstart's rooms (4 receptacles, 3 objects; panel
`tiny_unseen`), the others are games of larger rooms (8 receptacles, 4 objects; panel
`long_unseen`). The start is the quickstart's policy. Success on the panels, 128 games each, one
episode each, sampled at temperature 0.4 (greedy in brackets), before and after, seed 0:

    tiny   44.5% (40.6%)   57.0% (60.2%)
    long   10.2%  (7.0%)   35.9% (30.5%)

26 minutes on 2 cores that other programs used too. An example of `env.mix` (docs/tasks.md).
"""

from ml_collections import ConfigDict

from configs.quickstart import get_config as quickstart


def get_config() -> ConfigDict:
    """The config."""
    config = quickstart().unlock()
    rooms = config.env.generate.to_dict()
    config.env.generate = ConfigDict()
    config.eval.panel = ""
    config.env.max_steps = 14
    config.sampling.max_prompt_tokens = 96
    config.engine.prefill_buckets = (64, 80, 96)
    config.env.mix = ConfigDict(
        {
            "tiny": {
                "name": "alfworld",
                "weight": 2.0,
                "max_steps": 9,
                "generate": rooms,
                "panel": "tiny_unseen",
            },
            "long": {
                "name": "alfworld",
                "generate": rooms | {"receptacles": 8, "objects": 4},
                "panel": "long_unseen",
            },
        }
    )
    return config.lock()
