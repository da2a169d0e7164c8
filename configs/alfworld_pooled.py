"""Long episodes on ALFWorld until curves flatten, by benchmarks/protocols/alfworld_pooled.md.

    gigpo compare --config=configs/alfworld_pooled.py --algorithms=grpo,gigpo --seeds=0,1
    gigpo compare --config=configs/alfworld_pooled.py:tuning --algorithms=grpo --seeds=100

alfworld_long.py for 100 iterations on one core, with games in the training rooms to evaluate on
besides those in unseen rooms. The variant `tuning` has 40 iterations and games of another seed. The
protocol has the arms and their learning rates, docs/evidence.md what came out.
"""

from ml_collections import ConfigDict

from configs.alfworld_long import get_config as get_long_config


def get_config(stage: str = "report") -> ConfigDict:
    """The config.

    Args:
      stage: "report", or "tuning" for the choice of learning rates.

    Raises:
      ValueError: there is no such stage.
    """
    if stage not in ("report", "tuning"):
        raise ValueError("no such stage; choose report or tuning")
    config = get_long_config().unlock()
    config.compilation.cpu_threads = 1
    config.env.generate.splits = ConfigDict({"train": 2000, "valid_seen": 128, "valid_unseen": 128})
    config.train.iterations = 100
    config.eval.every = 20
    config.eval.greedy = False
    if stage == "tuning":
        # Neither the games nor the panels of the reported runs.
        config.env.generate.seed = 100
        config.train.iterations = 40
        config.eval.every = 10
        config.eval.panel = "long_tuning"
    return config.lock()
