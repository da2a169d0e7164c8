"""What the public environments said, action by action, for each of the games."""

import functools
import gzip
import json
import pathlib
from typing import Any

_FILE = pathlib.Path(__file__).parents[1] / "data" / "games" / "transcripts.jsonl.gz"


@functools.cache
def transcripts(name: str) -> list[dict[str, Any]]:
    """The episodes of an environment: first state, then `steps` with action, reward and state."""
    with gzip.open(_FILE, "rt") as lines:
        return [episode for episode in map(json.loads, lines) if episode["env"] == name]
