"""The code of docs/interfaces.md."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs/interfaces.md"


def code(heading: str) -> str:
    """The Python of the section with a heading."""
    section = PAGE.read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return "\n".join(re.findall(r"```python\n(.*?)```", section, re.DOTALL))
