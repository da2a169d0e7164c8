"""GiGPO with an agent program: agent.py plays every episode, over HTTP.

cd examples/harness && gigpo train --config=config.py --workdir=runs/harness
"""

from ml_collections import ConfigDict

from configs import sokoban_text_tiny


def get_config() -> ConfigDict:
    """As sokoban_text_tiny.py, but for who plays."""
    config = sokoban_text_tiny.get_config().unlock()
    config.env.name = "agent:PLAYER"
    config.env.prompt = "full"  # not read: prompts are the program's
    config.env.options = ConfigDict()
    config.env.invalid_penalty = 0.0
    config.env.step_timeout_s = 900.0  # of a whole episode
    config.eval.panel = ""
    return config.lock()
