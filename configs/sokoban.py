"""GiGPO on Sokoban from pictures with the settings of the authors' scripts, 150 iterations.

    gigpo train --config=configs/sokoban.py:3b --workdir=runs/sokoban \
        --config.model.path=/models/Qwen2.5-VL-3B-Instruct

Rooms of 6 x 6 with one box, at most 15 moves. A picture takes 36 tokens, one a cell; in the
authors' runs pictures of another size take 81.

Hardware: two GPUs with 80 GB (--config.mesh.fsdp=2). Expected: the authors' README reports 81.0%
success. This implementation has not been run at that size yet.
"""

from ml_collections import ConfigDict

from gigpo_jax.config import default_config


def picture_config() -> ConfigDict:
    """The base of the published runs on pictures, unlocked."""
    config = default_config().unlock()
    config.env.invalid_penalty = 0.1
    config.env.workers = 8
    config.sampling.max_prompt_tokens = 1024
    config.sampling.max_response_tokens = 512
    config.sampling.stop = ()  # the end-of-sequence token ends a response, and is trained too
    config.rl.normalize = "mean"
    config.rl.kl_coef = 0.01
    config.rl.entropy_coef = 0.001
    config.rl.old_logprobs = "recompute"
    config.train.group_size = 8
    config.engine.prefill_chunk = 0
    config.batch.rows = 8
    config.eval.panel = "test"
    return config


def get_config(variant: str = "3b") -> ConfigDict:
    """The config of a model size, 3b."""
    if variant != "3b":
        raise ValueError("no such variant; choose 3b")
    config = picture_config()
    config.env.name = "sokoban"
    config.env.max_steps = 15
    config.env.history = 2  # prompts with a picture show none
    config.train.iterations = 150
    config.train.groups = 32
    config.train.minibatch = 64
    return config.lock()
