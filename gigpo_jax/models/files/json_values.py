"""Numbers, sizes and flags of a config.json, checked as they are read."""

import pathlib
from collections.abc import Mapping
from typing import Any

from gigpo_jax.core.errors import InputError

_LARGEST = {  # generous: stops a broken file before arrays of such a size are tried
    "vocab_size": 2**24,
    "hidden_size": 2**16,
    "intermediate_size": 2**18,
    "num_hidden_layers": 2**10,
    "num_attention_heads": 2**10,
    "num_key_value_heads": 2**10,
    "head_dim": 2**12,
    "max_position_embeddings": 2**30,
    "original_max_position_embeddings": 2**30,
    "num_experts": 2**14,
    "num_experts_per_tok": 2**10,
    "moe_intermediate_size": 2**16,
    "decoder_sparse_step": 2**10,
    "no_rope_layer_interval": 2**10,
    "query_pre_attn_scalar": 2**20,
    "linear_num_key_heads": 2**10,
    "linear_num_value_heads": 2**10,
    "linear_key_head_dim": 2**12,
    "linear_value_head_dim": 2**12,
    "linear_conv_kernel_dim": 2**10,
    "full_attention_interval": 2**10,
    "sliding_window": 2**30,
    "sliding_window_pattern": 2**10,
}
FIX = "use the config.json that belongs to the model"


class JsonValues:
    """The values of an object of config.json, where a key of null counts as missing."""

    def __init__(self, content: Mapping[str, Any], file: pathlib.Path) -> None:
        self.file = file
        self._values = {key: value for key, value in content.items() if value is not None}

    def get(self, key: str, default: Any = None) -> Any:
        """Returns a value as it is."""
        return self._values.get(key, default)

    def size(self, key: str, default: int | None = None) -> int:
        """Reads a whole number from 1 on."""
        value = self.get(key, default)
        # Not `isinstance`, for which `true` is an int.
        if type(value) is not int or not 1 <= value <= _LARGEST[key]:
            raise self.error(
                f"{key}={value!r:.80} must be a whole number from 1 to {_LARGEST[key]}"
            )
        return value

    def number(self, key: str, default: float) -> float:
        """Reads a finite number above 0."""
        value = self.get(key, default)
        if type(value) not in (int, float) or not 0 < value < 1e12:
            raise self.error(f"{key}={value!r:.80} must be a finite number above 0")
        return float(value)

    def flag(self, key: str, default: bool = False) -> bool:
        """Reads true or false."""
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise self.error(f"{key}={value!r:.80} must be true or false")
        return value

    def integers(self, key: str) -> tuple[int, ...]:
        """Reads a list of integers; a missing one is empty."""
        value = self.get(key, [])
        if not isinstance(value, list) or not all(type(number) is int for number in value):
            raise self.error(f"{key}={value!r:.80} must be a list of integers")
        return tuple(value)

    def error(self, reason: str) -> InputError:
        """Makes the error of a value that cannot be right."""
        return InputError(reason, key=self.file, fix=FIX)


def read_token_ids(content: dict[str, Any], key: str, path: pathlib.Path) -> tuple[int, ...]:
    """Reads the token ids under a key of a model's file: one id, a list, null or missing.

    Raises:
      InputError: the value is something else.
    """
    value = content.get(key)
    if value is None:
        return ()
    ids = value if isinstance(value, list) else [value]
    if not all(type(number) is int and 0 <= number < 2**31 for number in ids):
        raise InputError(
            f"{key}={value!r:.80} must be a token id, a list of token ids or null", key=path
        )
    return tuple(ids)
