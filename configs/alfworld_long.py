"""Long episodes on ALFWorld, where credit for single steps should matter: 20 iterations of 8 tasks x 8 episodes.

python -m gigpo_jax.main --config=configs/alfworld_long.py --workdir=runs/alfworld_long
python -m gigpo_jax.compare --config=configs/alfworld_long.py --algorithms=grpo,gigpo --seeds=0,1

Small rooms with 8 receptacles and 4 objects, 30 actions an episode, a policy of 0.17 M parameters that imitated a
mediocre demonstrator (alfworld_long_sft.py) and wins about 40% of its training episodes; a third of its actions are not
admissible. docs/evidence.md has the protocol of the comparison and what came out. About 4 minutes of CPU time a run.
"""

from ml_collections import ConfigDict

from gigpo_jax.config import default_config


def long_config() -> ConfigDict:
    """What the warm start (alfworld_long_sft.py) and the training share, unlocked."""
    config = default_config().unlock()
    config.env.generate = ConfigDict(
        {"splits": {"train": 2000, "valid_unseen": 128}, "size": "small", "seed": 0, "receptacles": 8, "objects": 4}
    )
    config.env.max_steps = 30
    config.env.history = 4
    config.env.prompt = "compact"
    config.sampling.max_prompt_tokens = 96
    config.sampling.max_response_tokens = 16
    config.model.shape.update(
        hidden_size=64, intermediate_size=192, num_layers=3, num_heads=4, num_kv_heads=2, rope_theta=1e4
    )
    config.model.compute_dtype = "float32"
    config.model.remat = "none"
    config.model.unroll = 3
    config.engine.dtype = "float32"
    config.engine.slots = 64
    config.engine.decode_steps = 12
    config.engine.prefill_buckets = (64, 80, 96)
    config.engine.prefill_rows = (32,)
    config.batch.row_length = 768
    config.batch.rows = 1
    config.batch.logprob_chunk = 4096
    return config


def get_config() -> ConfigDict:
    """The config."""
    config = long_config()
    config.model.path = "models/alfworld_long"
    config.rl.kl_coef = 0.0
    config.optim.lr = 3e-4
    config.optim.schedule = "linear"
    config.train.iterations = 20
    config.train.groups = 8
    config.train.group_size = 8
    config.train.minibatch = 256
    config.train.save_rollouts = 0
    config.eval.panel = "long_unseen"
    config.eval.every = 5
    config.eval.greedy = True
    config.checkpoint.every = 5
    return config.lock()
