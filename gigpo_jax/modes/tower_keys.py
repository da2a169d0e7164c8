"""Config keys of the vision tower of a model with random weights."""

from gigpo_jax.config.key_types import KeySet
from gigpo_jax.config.keys import declare, named_keys
from gigpo_jax.core.settings import NOT_NEGATIVE, Rule

KEYS = named_keys(
    declare(
        "model.shape.vision.depth",
        "number of layers in a vision tower like Qwen2.5-VL's; 0: the model reads text alone",
        NOT_NEGATIVE,
    ),
    # The rotary embedding splits a head of 16 into rows and columns, each with pairs of numbers.
    declare(
        "model.shape.vision.hidden_size",
        "width of the vision tower: 16 for each attention head",
        Rule("a multiple of 16", lambda value: value > 0 and value % 16 == 0),
    ),
)
KEY_SET = KeySet(KEYS)
