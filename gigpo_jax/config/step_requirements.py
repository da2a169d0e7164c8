"""The condition of parts whose turns are not all steps of an environment."""

from ml_collections import ConfigDict

from gigpo_jax.config.requirements import require
from gigpo_jax.rl.algorithms import find_algorithm


def require_steps(config: ConfigDict, key: str, text: str, fix: str) -> None:
    """Raises an InputError for an algorithm that cannot have turns without a step.

    Args:
      config: Config with one environment.
      key: Key that makes such turns.
      text: What they are, for the message.
      fix: Advice for the message.
    """
    algorithm = find_algorithm(config.rl.algorithm, config.rl.settings)
    for signal in algorithm.load_signals():
        reason = signal.reads_steps_alone.format(text)
        require(not reason, config, key, f"{config.rl.algorithm} {reason}", fix)
