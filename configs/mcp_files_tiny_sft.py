"""The warm start of mcp_files_tiny.py: imitation of the expert with errors.

    c=configs/mcp_files_tiny_sft.py
    gigpo sft --config=$c --workdir=runs/mcp_files_sft --out=models/mcp_files_tiny

The expert reads any file in 60% of its steps. So the policy seldom searches, and there is something
to learn.
"""

from ml_collections import ConfigDict

from configs.mcp_files_tiny import files_config
from configs.tiny import imitation_config

STAGES = {
    "1": {
        "sft.episodes": 2000,
        "sft.epochs": 8,
        "sft.minibatch": 32,
        "optim.lr": 4e-3,
        "sft.demonstrator": {"random_fraction": 0.6},
    }
}


def get_config() -> ConfigDict:
    """The config."""
    return imitation_config(files_config(), STAGES, "1").lock()
