"""The type of command line flags of the form KEY=VALUE."""

import argparse
import json
from typing import Any


def parse_key_value(text: str) -> tuple[str, Any]:
    """Splits KEY=VALUE; other values than JSON are texts."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form KEY=VALUE")
    try:
        # Numbers, lists and true are JSON; an unquoted path or name is not.
        return key, json.loads(value)
    except json.JSONDecodeError:
        return key, value
