"""Nested configs by their dotted keys."""

from typing import Any

from ml_collections import ConfigDict


def flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one, with dotted keys; tuples become lists, as JSON has them."""
    out: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict | ConfigDict):
            out |= flat(value, f"{prefix}{key}.")
        else:
            out[prefix + key] = list(value) if isinstance(value, tuple) else value
    return out


def value_of(config: ConfigDict, name: str) -> Any:
    """The value of a dotted key."""
    place, last = holder(config, name)
    return place[last]


def holder(config: ConfigDict, name: str, *, make: bool = False) -> tuple[ConfigDict, str]:
    """The mapping that has a dotted key, and the key's last part; `make` adds the mappings on the way."""
    *path, last = name.split(".")
    for part in path:
        if make and part not in config:
            config[part] = ConfigDict()
        config = config[part]
    return config, last
