"""GiGPO in the maze, from the warm start of sft.py.

gigpo train --config=configs/train.py --workdir=runs/maze
"""

from ml_collections import ConfigDict

from gigpo_jax.config import default_config


def maze_config() -> ConfigDict:
    """The settings that the warm start and the training share, unlocked."""
    config = default_config().unlock()
    config.env.name = "maze.env:MAZE"
    config.env.prompt = "maze.prompt:short"
    config.env.options = ConfigDict({"size": 3})
    config.env.max_steps = 10
    config.env.history = 1
    config.model.shape.update(
        hidden_size=64, intermediate_size=192, num_layers=2, num_heads=4, num_kv_heads=2
    )
    config.model.compute_dtype = config.engine.dtype = "float32"
    config.model.remat = "none"
    config.engine.slots = 128
    config.sampling.max_prompt_tokens = 32
    config.sampling.max_response_tokens = 8
    config.engine.prefill_buckets = (32,)
    config.batch.row_length = 320
    config.batch.rows = 1
    return config


def get_config() -> ConfigDict:
    config = maze_config()
    config.model.path = "runs/maze_sft/model"
    config.eval.panel = "small"  # maze/panels/small.json
    config.eval.greedy = True
    config.rl.kl_coef = 0.0
    config.optim.lr = 5e-4
    config.optim.schedule = "linear"
    config.train.iterations = 40
    config.train.groups = 16
    config.train.group_size = 8
    config.train.minibatch = 256
    return config.lock()
