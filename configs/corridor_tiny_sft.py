"""The warm start of corridor_tiny.py: imitation of a guide whose summaries are poor.

    c=configs/corridor_tiny_sft.py
    gigpo sft --config=$c:summary --workdir=runs/corridor_sft_summary

The guide opens the right door. Its summaries name one thing that it has seen, the sign in a third
of them: what to remember is left to learn.
"""

from ml_collections import ConfigDict

from configs.corridor_tiny import corridor_config


def get_config(variant: str = "summary") -> ConfigDict:
    """The config of a variant: summary, drop or window."""
    config = corridor_config(variant)
    config.optim.b2 = 0.98
    config.optim.schedule = "cosine"
    config.optim.warmup_fraction = 0.02
    config.optim.lr = 4e-3
    config.sft.episodes = 2000
    config.sft.epochs = 1
    config.sft.minibatch = 128
    config.sft.demonstrator = ConfigDict({"sign_fraction": 0.33})
    return config.lock()
