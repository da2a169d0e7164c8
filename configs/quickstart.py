from ml_collections import ConfigDict

from gigpo_jax.config import default_config


def get_config() -> ConfigDict:
    config = default_config()
    return config
