"""Checks that an environment keeps its promises.

What is promised stands in `base.TextEnv`; how it is checked in promises.py; what bounds a call in confined.py.
"""

from collections.abc import Callable

from gigpo_jax.env_bridge.base import Expert, TextEnv
from gigpo_jax.env_bridge.checks import promises
from gigpo_jax.env_bridge.checks.confined import ConformanceError as ConformanceError
from gigpo_jax.env_bridge.checks.confined import Limits, run


def check_environment(
    make: Callable[[], TextEnv],
    *,
    split: str,
    make_expert: Callable[[int], Expert] | None = None,
    tasks: int = 4,
    steps: int = 30,
    seed: int = 0,
    limit_s: float = 10.0,
    build_s: float = 60.0,
) -> list[str]:
    """Plays an environment in several ways and compares.

    Args:
      make: builds one; has to be picklable (`functools.partial(registry.make, name, **options)` is), because the
        checks run in fresh interpreters, which are ended when a call hangs.
      split: whose tasks are played.
      make_expert: seed -> a demonstrator, if there is one; without it perhaps no episode reaches its end.
      tasks: how many tasks are played, spread over the split.
      steps: the most actions in an episode.
      seed: of the random actions.
      limit_s: a call may take so long, s.
      build_s: but make, make_expert and tasks so long, s.

    Returns:
      What was found to hold, a line each.

    Raises:
      ConformanceError: the first promise that was broken.
      InputError: make or tasks says what is wrong with the options, the split or the data.
    """
    limits = Limits(limit_s, build_s)
    held, played = run(promises.check_here, make, make_expert, split, tasks, steps, seed, limits=limits)
    for hash_seed in ("0", "1"):
        run(promises.check_afresh, make, played, hash_seed, limits=limits, hash_seed=hash_seed, ends=True)
    held.append("a fresh interpreter with another hash seed sees the same, anchors included; jax is not imported")
    held.append("closing gives back threads, files and processes")
    return list(held)
