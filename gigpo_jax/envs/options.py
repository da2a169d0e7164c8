"""Options of environments on the command line."""

import argparse
import json
from typing import Any


def key_value(text: str) -> tuple[str, Any]:
    """Key and value of KEY=VALUE, the type of a flag; the value is read as JSON, else it is a text."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form KEY=VALUE")
    try:
        return key, json.loads(value)
    except json.JSONDecodeError:
        return key, value
