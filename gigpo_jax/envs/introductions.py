"""Introductions of environments for agents with prompts of their own."""

from gigpo_jax.env_bridge.instructions import Instruct
from gigpo_jax.envs.registry import spec


def find_introduction(name: str) -> Instruct:
    """Finds an environment's introduction for agents with own prompts."""
    entry = spec(name)
    if entry.about:
        return entry.about
    # The same words introduce the game to agents as to a policy.
    for template in entry.styles.values():
        if isinstance(template, Instruct):
            return template
    return Instruct("")
