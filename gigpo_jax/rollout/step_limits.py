"""Limits of steps that grow from one iteration to the next (`env.first_max_steps`)."""

from ml_collections import ConfigDict


def step_limit(env: ConfigDict, iteration: int) -> int:
    """Largest number of actions in an iteration's episodes.

    A function of the iteration alone, so a resumed run needs no state. With n iterations of growth
    from `first` it is first + floor((max_steps - first) k / n) in iteration k, counted from 0. With
    first = 1 and n = h (max_steps - 1) that is 1 + floor(k / h), the forward order of arXiv
    2604.24005.

    Args:
      env: Section `env` of a config with one environment.
      iteration: Index of the iteration, from 0.
    """
    if iteration >= env.max_steps_iterations:
        return env.max_steps
    growth = env.max_steps - env.first_max_steps
    # Whole numbers: every host and every machine cuts at the same step.
    return env.first_max_steps + growth * iteration // env.max_steps_iterations
