"""Puts the page together: one HTML file with everything in it. It loads nothing and needs no network."""

import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from gigpo_jax.inspect.data import page_data


def render(folders: Sequence[Path], *, live: bool = False) -> str:
    """The page of one run or two.

    Args:
      folders: workdirs.
      live: whether the page asks its server for news.

    Raises:
      InputError: as `data.run_page`.
    """
    runs, packed = page_data(folders)
    parts = {
        "STYLE": _asset("page.css"),
        "SCRIPT": _asset("page.js"),
        "DATA": for_script({"runs": runs, "live": live}),
        "GROUPS": "".join(f'<script type="text/plain" id="{key}">{value}</script>\n' for key, value in packed.items()),
    }
    page = _asset("page.html")
    for name, part in parts.items():
        page = page.replace(f"@{name}@", part, 1)
    return page


def for_script(value: Any) -> str:
    """JSON that can stand in a script element, whatever its texts: no `<`, `>` or `&`, no line ends of JavaScript."""
    text = json.dumps(value, separators=(",", ":"))  # ASCII: U+2028 is escaped already
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _asset(name: str) -> str:
    return (files("gigpo_jax.inspect") / name).read_text(encoding="utf-8")
