"""Config keys of gigpo sft."""

from gigpo_jax.config.key_types import Part
from gigpo_jax.config.keys import declare, part_keys
from gigpo_jax.core.settings import POSITIVE

KEYS = part_keys(
    declare("sft.episodes", "number of demonstrations", POSITIVE),
    declare("sft.epochs", "number of passes over the demonstrations", POSITIVE),
    declare("sft.minibatch", "number of environment steps in an optimizer update", POSITIVE),
    declare(
        "sft.learn_prompts",
        "whether the loss predicts prompts too, which teaches a model from random weights to read",
    ),
)
PART = Part(KEYS)
