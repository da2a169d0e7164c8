"""Tags around actions."""

from ml_collections import ConfigDict

from gigpo_jax.config.mix import member_configs
from gigpo_jax.envs import registry


def action_tags(config: ConfigDict) -> tuple[str, ...]:
    """The tags around actions of all environments of a config."""
    specs = [registry.spec(member.env.name) for member in member_configs(config).values()]
    return tuple(dict.fromkeys(tag for spec in specs for tag in spec.action_tags))
