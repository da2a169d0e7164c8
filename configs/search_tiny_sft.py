"""The warm start of search_tiny.py: imitation of a mediocre demonstrator, from random weights, in two stages.

c=configs/search_tiny_sft.py
python -m gigpo_jax.main --mode=sft --config=$c:1 --workdir=runs/search_sft1 --out=runs/search_sft1/model
python -m gigpo_jax.main --mode=sft --config=$c:2 --workdir=runs/search_sft2 --out=models/search_tiny

The first stage learns to read and to copy names: it predicts prompts as well as responses, of a demonstrator that names
half of what it looks for in every fifth search. The second learns to act, from responses alone, of one that answers
half of the questions at once, names half of what it looks for in half of its searches, and after three of ten searches
that did not settle the question answers with a name that it happened to read. What is left to learn is to look things
up.

Hardware: 2 cores; 14 and 4 minutes (1,225 and 288 updates) on a busy machine. Result: 0.4 M parameters; held-out
cross-entropy 0.137 and then 0.245 nats a response token; the header of search_tiny.py says what the result scores.
"""

from ml_collections import ConfigDict

from configs.search_tiny import tiny_search_config


def get_config(stage: str = "1") -> ConfigDict:
    """The config of a stage, 1 or 2."""
    if stage not in ("1", "2"):
        raise ValueError(f"configs/search_tiny_sft.py:{stage}: no such stage; choose 1 or 2")
    config = tiny_search_config()
    config.optim.b2 = 0.98
    config.optim.schedule = "cosine"
    config.optim.warmup_fraction = 0.02
    if stage == "1":
        fractions, config.sft.learn_prompts = (0.0, 0.2, 0.1), True
        config.sft.episodes, config.sft.minibatch, config.optim.lr = 30000, 64, 2e-3
    else:
        fractions, config.seed, config.model.path = (0.5, 0.5, 0.3), 1, "runs/search_sft1/model"
        config.sft.episodes, config.sft.minibatch, config.optim.lr = 10000, 64, 1e-3
    config.sft.demonstrator = ConfigDict(
        dict(zip(("blind_fraction", "vague_fraction", "hasty_fraction"), fractions, strict=True))
    )
    return config.lock()
