"""The algorithms by name: the values of `rl.algorithm` and `rl.preset`.

An algorithm is a function (`StepColumns`, keyword settings) -> `Advantages`, with the settings that
define it. One of your own is `module:NAME` (docs/own_algorithm.md).
"""

from collections.abc import Callable, Mapping
from functools import partial, wraps
from types import MappingProxyType
from typing import Any

import jax.numpy as jnp

from gigpo_jax.core.errors import InputError
from gigpo_jax.core.method_table import METHOD_ALGORITHMS
from gigpo_jax.core.references import ReferenceTable, find_entry
from gigpo_jax.rl.advantages import CHOICES, Advantages
from gigpo_jax.rl.algorithm_types import BASE, Algorithm
from gigpo_jax.rl.types import StepColumns

# The switches on which published implementations differ; docs/algorithm.md explains them.
PRESETS: dict[str, dict[str, str | int]] = {
    "paper": {
        "episode_stats": "trajectory",
        "penalty_in": "reward",
        "singleton_episode": "zero",
        "ddof": 1,
    },
    "verl_agent": {
        "episode_stats": "step",
        "penalty_in": "row",
        "singleton_episode": "raw",
        "ddof": 1,
    },
}

ALGORITHMS: ReferenceTable[Algorithm] = ReferenceTable(
    {
        "gigpo": "gigpo_jax.rl.algorithm_types:GIGPO",
        "grpo": "gigpo_jax.rl.variants:GRPO",
        "dr_grpo": "gigpo_jax.rl.variants:DR_GRPO",
        "dapo": "gigpo_jax.rl.variants:DAPO",
        "gspo": "gigpo_jax.rl.variants:GSPO",
        "gmpo": "gigpo_jax.rl.variants:GMPO",
        "hoelder": "gigpo_jax.rl.variants:HOELDER",
        "rloo": "gigpo_jax.rl.rloo:METHOD",
        "reinforce_pp": "gigpo_jax.rl.reinforce_pp:METHOD",
        "reinforce_pp_baseline": "gigpo_jax.rl.reinforce_pp:WITH_BASELINE",
        "repeat_discount": "gigpo_jax.rl.repeat_discount:METHOD",
        "graph_values": "gigpo_jax.rl.graph_values:METHOD",
        "ppo": "gigpo_jax.rl.ppo:METHOD",
    }
    | METHOD_ALGORITHMS
)


def find_algorithm(name: str, settings: Mapping[str, Any] = MappingProxyType({})) -> Algorithm:
    """Finds an algorithm, a key of `ALGORITHMS` or "module:NAME", a wrapper together with its base.

    `settings` are values of some of its own settings.

    Raises:
      InputError: The algorithm or a setting does not exist, or a value is not allowed.
    """
    algorithm = find_entry(name, ALGORITHMS, Algorithm, key="config.rl.algorithm")
    # First the base: its settings are names of the wrapper too.
    if BASE in algorithm.settings:
        from gigpo_jax.rl.wrappers import join_base

        algorithm = join_base(algorithm, settings, ALGORITHMS)
    for key, value in settings.items():
        if key not in algorithm.settings:
            from gigpo_jax.core.spelling import nearest_names

            near = nearest_names(key, algorithm.settings)
            names = ", ".join(algorithm.settings) or "none"
            raise InputError(
                f"no such setting of the algorithm {name}",
                key=f"config.rl.settings.{key}",
                fix=f"nearest: {', '.join(near)}" if near else f"it has {names}",
            )
        complaint = algorithm.settings[key].complaint(value)
        if complaint:
            raise InputError(complaint, key=f"config.rl.settings.{key}", value=repr(value))
    return algorithm


def make_advantages(
    name: str, preset: str, *, gamma: float, step_weight: float, normalize: str, **settings: Any
) -> Callable[[StepColumns], Advantages]:
    """Builds an algorithm's advantage function.

    Args:
      name: Name of an algorithm, as for `find_algorithm`.
      preset: Key of `PRESETS`.
      gamma, step_weight, normalize: Settings of `gigpo_advantages`, unless the algorithm fixes
        them.
      **settings: The algorithm's own settings, and switches that win over the preset.

    Raises:
      InputError: The algorithm, preset or a setting does not exist, or a value is not allowed.
    """
    if preset not in PRESETS:
        fix = f"choose one of {', '.join(PRESETS)}"
        raise InputError("no such preset", key="rl.preset", value=repr(preset), fix=fix)
    # One namespace at the call, two meanings: switches of GiGPO, and settings of the algorithm.
    switches = {key: value for key, value in settings.items() if key in CHOICES}
    given_settings = {key: value for key, value in settings.items() if key not in CHOICES}
    algorithm = find_algorithm(name, given_settings)
    own_settings = {
        key: given_settings.get(key, setting.default) for key, setting in algorithm.settings.items()
    }
    if "shrinkage" in own_settings:
        from gigpo_jax.rl.fixed_point import check_fixed_point

        check_fixed_point(own_settings, gamma)
    common: dict[str, Any] = {"gamma": gamma, "step_weight": step_weight, "normalize": normalize}
    common |= switches
    # Other fixed settings, such as the ratio, are read by the loss and not by the function.
    common |= {key: value for key, value in algorithm.fixed.items() if key in common}
    if BASE not in own_settings:
        # The last one wins: a switch that the caller names replaces the preset's.
        keywords = {**PRESETS[preset], **common, **own_settings}
        return _accept_no_rows(partial(algorithm.advantages, **keywords))

    from gigpo_jax.rl.wrappers import bind_base

    wrapper = find_entry(name, ALGORITHMS, Algorithm, key="config.rl.algorithm")
    make_base = partial(make_advantages, preset=preset, **common)
    return _accept_no_rows(bind_base(wrapper, own_settings, make_base))


def _accept_no_rows(advantages: partial[Advantages]) -> Callable[[StepColumns], Advantages]:
    """Lets an advantage function that needs a row take columns without rows."""

    @wraps(advantages.func)  # its name is the name of the compiled program
    def advantages_of_rows(columns: StepColumns) -> Advantages:
        if columns.mask.shape[0] == 0:
            empty = jnp.zeros(0, jnp.float32)
            return Advantages(empty, empty, empty)
        return advantages(columns)

    return advantages_of_rows
