"""The warm start of corridor_tiny.py: imitation of a guide, in two stages.

    c=configs/corridor_tiny_sft.py
    w=runs/corridor_sft
    gigpo sft --config=$c:summary-1 --workdir=${w}1
    gigpo sft --config=$c:summary-2 --workdir=${w}2

The guide opens the right door. In the first stage its summaries name the sign: the policy learns to
copy what it reads. In the second they name one thing that it has seen, the sign in a third of
them: what to remember is left to learn. Runs of the variant drop start from the same policy.
"""

from ml_collections import ConfigDict

from configs.corridor_tiny import corridor_config
from configs.tiny import imitation_config

STAGES = {
    "1": {
        "sft.episodes": 2000,
        "sft.epochs": 2,
        "sft.minibatch": 64,
        "optim.lr": 4e-3,
        "sft.demonstrator": {"sign_fraction": 1.0},
    },
    "2": {
        "model.path": "runs/corridor_sft1/model",
        "sft.episodes": 600,
        "sft.epochs": 1,
        "sft.minibatch": 128,
        "optim.lr": 2e-3,
        "sft.demonstrator": {"sign_fraction": 0.33},
    },
}


def get_config(variant: str = "summary-1") -> ConfigDict:
    """The config of a variant of corridor_tiny.py and a stage, such as summary-1."""
    name, _, stage = variant.partition("-")
    return imitation_config(corridor_config(name), STAGES, stage).lock()
