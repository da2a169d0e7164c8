"""Config keys of gigpo sft."""

from gigpo_jax.config.key_types import KeySet
from gigpo_jax.config.keys import declare, named_keys
from gigpo_jax.core.settings import POSITIVE

KEYS = named_keys(
    declare("sft.episodes", "number of demonstrations", POSITIVE),
    declare("sft.epochs", "number of passes over the demonstrations", POSITIVE),
    declare("sft.minibatch", "number of environment steps in an optimizer update", POSITIVE),
    declare(
        "sft.learn_prompts",
        "whether the loss predicts prompts too, which teaches a model from random weights to read",
    ),
)
KEY_SET = KeySet(KEYS)
