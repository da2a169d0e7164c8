"""Inputs of several values or files, as one JSON object."""

import json
from pathlib import Path
from typing import Any


def parse_object(data: bytes) -> dict[str, Any]:
    """The JSON object of an input that is made of several; {} if it is none."""
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def dump(*values: Any) -> list[bytes]:
    """Inputs from JSON values."""
    return [json.dumps(value).encode() for value in values]


def write_files(data: bytes, folder: str) -> Path:
    """Writes a JSON object of files, whose values are JSON or texts."""
    for name, value in parse_object(data).items():
        if name and name.replace("_", "").replace(".", "").isalnum() and len(name) < 50:
            text = value if isinstance(value, str) else json.dumps(value)
            Path(folder, name).write_text(text, encoding="utf-8", errors="surrogatepass")
    return Path(folder)
