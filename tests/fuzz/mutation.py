"""Changes of inputs: of bytes, and of the values in their JSON."""

import json
import random
import struct
from typing import Any

VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2**31, 2**63, 2**70, 10**400),
    *(0.5, -0.0, 1e308, float("inf"), float("nan")),
    *("", "a", "0", "\ud800", "\0", "é\u202e🤖", "</action>", "a" * 5000),
    *([], {}, [[]], [None], [0, 1], {"a": {}}, {"": []}),
)
_BLOCKS = (b"", b"\0" * 8, b"\xff" * 8, b"<think>", b"</tool_call>", b'"', b"[" * 3000, b"\xf0\x9f")


def mutate(data: bytes, rng: random.Random, prefix: struct.Struct | None) -> bytes:
    """Changes an input in one to three places.

    Args:
      data: Input.
      rng: Random numbers.
      prefix: Length in front of the JSON, for inputs that have one.
    """
    for _ in range(rng.randrange(1, 4)):
        parsed = _split(data, prefix) if rng.random() < 0.8 else None
        if parsed is None:
            data = _mutate_bytes(data, rng)
            continue
        value, rest = parsed
        text = json.dumps(_mutate_value(value, rng)).encode()
        data = text if prefix is None else prefix.pack(len(text)) + text + rest
    return data


def _split(data: bytes, prefix: struct.Struct | None) -> tuple[Any, bytes] | None:
    """The JSON of an input and what is behind it; None if it has none."""
    start = 0 if prefix is None else prefix.size
    if len(data) < start:
        return None
    end = len(data) if prefix is None else start + prefix.unpack_from(data)[0]
    try:
        return json.loads(data[start:end]), data[end:]
    except (ValueError, RecursionError):
        return None


def _mutate_value(value: Any, rng: random.Random) -> Any:
    """Changes one place of a JSON value."""
    if not isinstance(value, dict | list) or not value or rng.random() < 0.1:
        return rng.choice(VALUES)
    keys = list(value) if isinstance(value, dict) else [*range(len(value))]
    key = rng.choice(keys)
    action = rng.random()
    if action < 0.1:
        del value[key]
    elif action < 0.2 and isinstance(value, list):
        value.insert(key, rng.choice([*VALUES, value[key]]))
    elif action < 0.2:
        value[rng.choice(["a", "type", *keys])] = value[rng.choice(keys)]
    else:
        value[key] = _mutate_value(value[key], rng)
    return value


def _mutate_bytes(data: bytes, rng: random.Random) -> bytes:
    start = rng.randrange(len(data) + 1)
    end = min(len(data), start + rng.choice((0, 0, 1, 1, 4, 8, 64)))
    block = rng.choice([*_BLOCKS, data[end : end + 16], rng.randbytes(4)])
    return data[:start] + block + data[end:]
