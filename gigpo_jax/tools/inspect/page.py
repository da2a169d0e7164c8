"""Renders the page: one HTML file that loads nothing and needs no network."""

import json
import re
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from gigpo_jax.tools.inspect.data import collect_pages


def render_page(folders: Sequence[Path], *, live: bool = False) -> str:
    """Renders the page of one run or two.

    Args:
      folders: Workdirs.
      live: Whether the page asks its server for changes.

    Raises:
      InputError: As in `data.collect_run`.
    """
    runs, packed = collect_pages(folders)
    elements = [
        # Base64 has no "<": packed texts cannot end their element. A browser does not run
        # text/plain.
        f'<script type="text/plain" id="{key}">{value}</script>\n'
        for key, value in packed.items()
    ]
    contents = {
        "STYLE": _read_asset("page.css"),
        "SCRIPT": _read_asset("page.js"),
        "DATA": encode_for_script({"runs": runs, "live": live}),
        "GROUPS": "".join(elements),
    }
    # In one pass: texts of a run that look like a placeholder stay as they are.
    placeholder = re.compile(f"@({'|'.join(contents)})@")
    return placeholder.sub(lambda match: contents[match[1]], _read_asset("page.html"))


def encode_for_script(value: Any) -> str:
    """Encodes a value as JSON that cannot end the script element it stands in.

    The result has no `<`, `>` or `&`, and no line ends of JavaScript.
    """
    # json.dumps writes ASCII: U+2028, a line end of JavaScript, is escaped already.
    text = json.dumps(value, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _read_asset(name: str) -> str:
    return (files("gigpo_jax.tools.inspect") / name).read_text(encoding="utf-8")
