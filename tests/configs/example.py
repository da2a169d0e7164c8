"""A run of seconds: the example environment and a model of a few thousand parameters."""

from ml_collections import ConfigDict

from gigpo_jax.config import default_config


def get_config() -> ConfigDict:
    config = default_config().unlock()
    config.env.name, config.env.prompt, config.env.max_steps, config.env.history = (
        "example",
        "compact",
        4,
        2,
    )
    config.env.options = ConfigDict({"drawers": 2, "games": 16})
    config.env.workers = 1
    config.model.compute_dtype = config.engine.dtype = "float32"
    config.model.remat = "none"
    config.model.shape.update(
        hidden_size=16, intermediate_size=32, num_layers=2, num_heads=2, num_kv_heads=1
    )
    config.engine.slots = 8
    config.engine.prefill_buckets = (48,)
    config.engine.prefill_rows = (4,)
    config.sampling.max_prompt_tokens, config.sampling.max_response_tokens = 48, 10
    config.batch.row_length, config.batch.rows = 64, 4
    config.rl.kl_coef = 0.01
    config.optim.lr = 3e-3
    (
        config.train.iterations,
        config.train.groups,
        config.train.group_size,
        config.train.minibatch,
    ) = 6, 4, 4, 16
    config.train.save_rollouts = 2
    config.sft.episodes, config.sft.epochs, config.sft.minibatch = 64, 12, 32
    config.eval.every = 3
    config.checkpoint.every = 2
    return config.lock()
