"""FrozenLake as text: a walk over ice to a goal, with holes."""
