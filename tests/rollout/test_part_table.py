"""Which parts an episode has, by the config of its environment."""

from gigpo_jax.config import default_config
from gigpo_jax.methods.rebel.episode_part import BeliefsPart
from gigpo_jax.rollout.part_table import find_parts, part_metrics


def test_an_episode_has_the_parts_that_its_config_needs() -> None:
    config = default_config()
    assert find_parts(config, is_training=True) == []
    assert part_metrics(config) == []
    config.env.resample_turns = 2
    config.env.plan = "strategy"
    config.agent = "reflexion"

    def names(is_training: bool) -> list[str]:
        return [part.func.__name__ for part in find_parts(config, is_training=is_training)]

    # In the order of the table: the strategy is there before a turn is sampled again.
    assert names(is_training=True) == ["StrategyPart", "ResamplingPart", "ReflectionsPart"]
    assert names(is_training=False) == ["StrategyPart", "ReflectionsPart"]
    config.env.plan = "belief"
    assert part_metrics(config) == [*BeliefsPart.metrics]
