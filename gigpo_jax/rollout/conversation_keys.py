"""Config keys of conversations, whose prompts go on from earlier responses."""

from ml_collections import ConfigDict

from gigpo_jax.config.key_types import KeySet
from gigpo_jax.config.keys import declare, named_keys
from gigpo_jax.config.requirements import require

KEYS = named_keys(
    # For gigpo serve, which cannot know whether programs hold conversations.
    declare(
        "engine.keep_responses",
        "whether the next call of a conversation continues in its slot, or False: responses are "
        "read again (docs/conversations.md); auto: True for conversations read in chunks",
        auto=True,
    ),
)


def check(config: ConfigDict, trains: bool) -> None:
    """Checks that prompts are read in chunks where responses are kept."""
    del trains
    engine = config.engine
    reason = "responses are kept where prompts are read in chunks"
    fix = "add --config.engine.prefill_chunk=32, or leave it out"
    in_chunks = bool(engine.prefill_chunk)
    require(in_chunks or not engine.keep_responses, config, "engine.keep_responses", reason, fix)


KEY_SET = KeySet(KEYS, check=check)
