"""Finds the parts of episodes that a config needs."""

from collections.abc import Callable
from functools import partial

from ml_collections import ConfigDict

from gigpo_jax.config.keys import meets_condition
from gigpo_jax.config.mix import member_configs
from gigpo_jax.core.method_table import METHOD_EPISODE_PARTS
from gigpo_jax.core.references import ReferenceTable
from gigpo_jax.rollout.episode_parts import EpisodePart

PARTS: ReferenceTable[type[EpisodePart]] = ReferenceTable(METHOD_EPISODE_PARTS)


def find_parts(config: ConfigDict, *, is_training: bool) -> list[Callable[[], EpisodePart]]:
    """Finds the parts of episodes in an environment; an episode makes its own of each."""
    parts = (PARTS[condition] for condition in PARTS if meets_condition(config, condition))
    return [partial(part, config) for part in parts if is_training or not part.is_for_training]


def part_metrics(config: ConfigDict) -> list[str]:
    """Names of the metrics that parts add to turns of training, in any environment of a run."""
    names: dict[str, None] = {}
    for member in member_configs(config).values():
        for condition in PARTS:
            if meets_condition(member, condition):
                names |= dict.fromkeys(PARTS[condition].metrics)
    return [*names]
