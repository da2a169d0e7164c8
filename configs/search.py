"""GiGPO on search QA with the published settings (arXiv 2505.10978, section 5.3).

    gigpo train --config=configs/search.py:3b --workdir=runs/search \
        --config.model.path=/models/Qwen2.5-3B-Instruct \
        --config.env.options.data=/data/search \
        --config.env.options.url=http://127.0.0.1:8000/retrieve

docs/search.md says how to make /data/search and how to start the retriever; without them the run is
refused. With `--config.env.options.data=` it plays the synthetic world, which is not the published
setting. Hardware: 3b from two GPUs with 80 GB (fsdp=2); 7b from eight; the retriever beside them,
on a machine of its own. Expected: the paper reports an average exact match of 42.1% (3B) and 47.2%
(7B) over the test questions of seven data sets. This implementation has not been run at that size
yet.
"""

from ml_collections import ConfigDict

from gigpo_jax.config import default_config


def get_config(variant: str = "3b") -> ConfigDict:
    """The config of a model size, 3b or 7b."""
    if variant not in ("3b", "7b"):
        raise ValueError("no such variant; choose 3b or 7b")
    config = default_config().unlock()
    config.env.name = "search"
    config.env.options = ConfigDict({"data": "data/search"})  # needs url or index too
    config.env.max_steps = 4
    config.env.history = 4
    config.env.invalid_penalty = 0.01
    config.env.workers = 16  # each has up to 8 requests of up to 64 queries on their way
    config.sampling.max_prompt_tokens = 4096
    config.sampling.max_response_tokens = 512
    config.sampling.stop = ()  # the end-of-sequence token ends a response, and is trained too
    config.engine.slots = 256
    config.engine.prefill_chunk = 32
    config.engine.prefill_rows = (32,)
    config.rl.anchor_match = "similar"
    config.rl.similarity = 0.9
    config.rl.kl_coef = 0.001
    config.rl.old_logprobs = "recompute"
    config.optim.warmup_fraction = 0.1
    # One pass over the 169,615 questions of NQ and HotpotQA, as in the script; the paper says 200.
    config.train.iterations = 662
    config.train.groups = 256
    config.train.group_size = 5
    config.train.minibatch = 512
    config.mesh.fsdp = {"3b": 2, "7b": 8}[variant]
    config.batch.row_length = 6144  # at least a prompt and its response, 4,608 tokens
    config.batch.rows = {"3b": 8, "7b": 16}[variant]
    config.eval.every = 50
    config.eval.temperature = 0.0  # greedy
    return config.lock()
