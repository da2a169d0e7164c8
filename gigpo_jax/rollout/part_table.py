"""The parts of episodes by what needs them: one literal table."""

from collections.abc import Callable
from functools import partial

from ml_collections import ConfigDict

from gigpo_jax.config.keys import meets_condition
from gigpo_jax.config.mix import member_configs
from gigpo_jax.core.references import ReferenceTable
from gigpo_jax.rollout.episode_parts import EpisodePart

# The parts in the order in which an episode calls them, by what needs them
# (`config.keys.meets_condition`).
PARTS: ReferenceTable[type[EpisodePart]] = ReferenceTable(
    {
        "env.plan=strategy": "gigpo_jax.methods.strata.episode_part:StrategyPart",
        "env.context=summary": "gigpo_jax.methods.mem_agent.episode_part:SummariesPart",
        "env.resample_turns": "gigpo_jax.methods.t2po.episode_part:ResamplingPart",
        "env.plan=belief": "gigpo_jax.methods.rebel.episode_part:BeliefsPart",
        "agent": "gigpo_jax.methods.reflexion.episode_part:ReflectionsPart",
    }
)


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
