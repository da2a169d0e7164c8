"""The example config for Sokoban from pictures."""

from ml_collections import ConfigDict

from tests.configs import example


def get_config() -> ConfigDict:
    config = example.get_config().unlock()
    config.env.name, config.env.options, config.env.max_steps = "sokoban", ConfigDict(), 15
    return config.lock()
