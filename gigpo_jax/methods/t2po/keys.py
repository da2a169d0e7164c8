"""Config keys of turns that are sampled again (docs/tasks.md)."""

from ml_collections import ConfigDict

from gigpo_jax.config.key_types import KeySet
from gigpo_jax.config.keys import declare, named_keys
from gigpo_jax.config.requirements import require
from gigpo_jax.core.settings import NOT_NEGATIVE
from gigpo_jax.envs import registry

KEYS = named_keys(
    declare(
        "env.resample_turns",
        "largest number of times that a turn of training is sampled again, because its uncertainty "
        "is nearly that of the turn before; 0: never (docs/tasks.md)",
        NOT_NEGATIVE,
        mixes=True,
    ),
    # For forks and turns that are chosen by entropy, where estimates are too noisy.
    declare(
        "engine.entropies",
        "whether responses have entropies of their tokens, which train.fork_choice=entropy and "
        "env.resample_turns read in place of estimates",
    ),
)


def check_member(config: ConfigDict, run: ConfigDict) -> None:
    """Checks that turns can be sampled again."""
    del run
    reason = "the program of the harness asks for responses"
    is_program = registry.spec(config.env.name).harness
    can_resample = not (is_program and config.env.resample_turns)
    require(can_resample, config, "env.resample_turns", reason, "use 0")


KEY_SET = KeySet(KEYS, check_member=check_member)
