"""Long episodes on ALFWorld, where credit for single steps should matter.

    gigpo train --config=configs/alfworld_long.py --workdir=runs/alfworld_long
    gigpo compare --config=configs/alfworld_long.py \
        --algorithms=grpo,gigpo --seeds=0,1

20 iterations of 8 tasks x 8 episodes. Small rooms with 8 receptacles and 4 objects, 30 actions an
episode, a policy of 0.17 M parameters that imitated a mediocre demonstrator (alfworld_long_sft.py)
and wins about 40% of its training episodes; a third of its actions are not admissible.
docs/evidence.md has the protocol of the comparison and what came out. About 4 minutes of CPU time a
run.
"""

from ml_collections import ConfigDict

from configs.tiny import tiny_config, train_config


def long_config() -> ConfigDict:
    """The base of this experiment and its warm start, unlocked."""
    config = tiny_config()
    config.env.generate.update(receptacles=8, objects=4)
    config.env.max_steps = 30
    config.sampling.max_prompt_tokens = 96
    config.model.shape.update(hidden_size=64, intermediate_size=192, num_layers=3)
    config.model.unroll = 3
    config.engine.slots = 64
    config.engine.decode_steps = 12
    config.engine.prefill_buckets = (64, 80, 96)
    return config


def get_config() -> ConfigDict:
    """The config."""
    config = train_config(long_config())
    config.model.path = "models/alfworld_long"
    config.optim.lr = 3e-4
    config.train.iterations = 20
    config.train.groups = 8
    config.train.save_rollouts = 0
    config.eval.panel = "long_unseen"
    return config.lock()
