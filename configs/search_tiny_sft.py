"""The warm start of search_tiny.py: imitation of a mediocre demonstrator, in two stages.

    c=configs/search_tiny_sft.py
    w=runs/search_sft
    gigpo sft --config=$c:1 --workdir=${w}1 --out=${w}1/model
    gigpo sft --config=$c:2 --workdir=${w}2 --out=models/search_tiny

The first stage learns to read and to copy names: it predicts prompts as well as responses, of a
demonstrator that names half of what it looks for in every fifth search. The second learns to act,
from responses alone, of one that answers half of the questions at once, names half of what it looks
for in half of its searches, and after three of ten searches that did not settle the question
answers with a name that it happened to read. What is left to learn is to look things up.

Hardware: 2 cores; 14 and 4 minutes (1,225 and 288 updates) on a busy machine. Result: 0.4 M
parameters; held-out cross-entropy 0.137 and then 0.245 nats a response token; the header of
search_tiny.py says what the result scores.
"""

from ml_collections import ConfigDict

from configs.search_tiny import tiny_search_config
from configs.tiny import imitation_config

STAGES = {
    "1": {
        "sft.learn_prompts": True,
        "sft.episodes": 30000,
        "sft.minibatch": 64,
        "optim.lr": 2e-3,
        "sft.demonstrator": {"blind_fraction": 0.0, "vague_fraction": 0.2, "hasty_fraction": 0.1},
    },
    "2": {
        "seed": 1,
        "model.path": "runs/search_sft1/model",
        "sft.episodes": 10000,
        "sft.minibatch": 64,
        "optim.lr": 1e-3,
        "sft.demonstrator": {"blind_fraction": 0.5, "vague_fraction": 0.5, "hasty_fraction": 0.3},
    },
}


def get_config(stage: str = "1") -> ConfigDict:
    """The config of a stage, 1 or 2."""
    return imitation_config(tiny_search_config(), STAGES, stage).lock()
