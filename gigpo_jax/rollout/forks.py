"""Episodes of a group that begin in states of its first ones (docs/forks.md)."""

from dataclasses import dataclass

from ml_collections import ConfigDict


@dataclass(frozen=True)
class Forking:
    """Number of a group's forks and choice of their starts.

    Attributes:
      number: Number of forks in a group.
      choice: Value of train.fork_choice.
      gamma: Discount factor of the values of states.
    """

    number: int = 0
    choice: str = "uncertainty"
    gamma: float = 1.0


NO_FORKS = Forking()


def make_forking(config: ConfigDict) -> Forking:
    """The forks of a training run's rollouts."""
    return Forking(config.train.forks, config.train.fork_choice, config.rl.gamma)
