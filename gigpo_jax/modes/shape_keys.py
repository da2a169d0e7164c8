"""Config keys of the model with random weights that gigpo sft can train."""

from ml_collections import ConfigDict

from gigpo_jax.config.key_types import KeySet
from gigpo_jax.config.keys import declare, named_keys
from gigpo_jax.config.requirements import require
from gigpo_jax.core.settings import POSITIVE

KEYS = named_keys(
    declare(
        "model.shape.hidden_size",
        "width of the model; model.shape is a Qwen2.5 architecture with a word tokenizer",
        POSITIVE,
    ),
    declare("model.shape.intermediate_size", "inner width of the feed-forward layers", POSITIVE),
    declare("model.shape.num_layers", "number of decoder layers", POSITIVE),
    declare("model.shape.num_heads", "number of query heads", POSITIVE),
    declare("model.shape.num_kv_heads", "number of key and value heads", POSITIVE),
    declare("model.shape.rope_theta", "base of the rotary embedding", POSITIVE),
    declare(
        "model.shape.initializer_range",
        "standard deviation of random weight matrices, also in the vision tower",
        POSITIVE,
    ),
)


def check(config: ConfigDict, trains: bool) -> None:
    """Checks the shape of a model with random weights."""
    del trains
    if config.model.path:
        return
    shape = config.model.shape
    divides = shape.num_heads % shape.num_kv_heads == 0
    reason = f"must divide model.shape.num_heads={shape.num_heads}"
    require(divides, config, "model.shape.num_kv_heads", reason)


KEY_SET = KeySet(KEYS, check=check)
