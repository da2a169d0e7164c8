"""What tests of the documentation read from its pages: code, commands, links and anchors."""

import re
import runpy
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
# Pages that docs/ does not hold, but the site does: scripts write them when it is built.
GENERATED = {"configuration.md": DOCS / "make_configuration.py"}
FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
# A word that stands for the reader's own value.
PLACEHOLDER = re.compile(
    r"\b(DIR|DEVICES|FILE|GAMES|HOST|MODEL|N|NAME|OUT|TARGET|WORKDIR|[A-Z]+_[A-Z]+)\b"
)


def list_pages() -> list[Path]:
    """Every page of the root, docs/, protocols, models/ and methods, without generated ones."""
    root_pages = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    pages = [path for path in sorted(DOCS.rglob("*.md")) if path.name not in GENERATED]
    records = sorted((ROOT / "benchmarks/protocols").glob("*.md"))
    methods = sorted((ROOT / "gigpo_jax/methods").glob("*/README.md"))
    return [*root_pages, *pages, *records, ROOT / "models/README.md", *methods]


@cache
def read_page(path: Path) -> str:
    """The text of a page, also of a generated one."""
    script = GENERATED.get(path.name)
    if script and path.parent == DOCS:
        return str(runpy.run_path(str(script))["page"]())
    return path.read_text(encoding="utf-8")


def page_exists(path: Path) -> bool:
    return path.exists() or (path.parent == DOCS and path.name in GENERATED)


def blocks(text: str) -> Iterator[tuple[str, str]]:
    """Language and code of each block; indented blocks have the language ""."""
    for match in FENCE.finditer(text):
        indent, language, code = match.groups()
        yield language, re.sub(rf"^{indent}", "", code, flags=re.MULTILINE)
    rest = FENCE.sub("", text)
    for match in re.finditer(r"(?:^|\n)\n((?: {4}[^\n]*\n|\n)+)", rest):
        if match[1].strip():
            yield "", re.sub(r"^ {4}", "", match[1], flags=re.MULTILINE)


def command_lines(text: str) -> Iterator[list[str]]:
    """The words of each command in a page's blocks, without the assignments before it.

    Commands that `&&` joins are several. "..." stands for further flags and is left out.
    """
    for language, code in blocks(text):
        if language not in ("", "sh", "bash"):
            continue
        for line in code.replace("\\\n", "").splitlines():
            try:
                words = shlex.split(line, comments=True)
            except ValueError:  # a sentence with an apostrophe is no command
                continue
            command: list[str] = []
            for word in [*words, "&&"]:
                if word == "&&":
                    while command and re.match(r"^\w+=", command[0]):
                        command.pop(0)
                    if command:
                        yield command
                    command = []
                elif word != "...":
                    command.append(word)


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub and the site make them, and of `<a id=..>`."""
    found = set(re.findall(r'<a id="([^"]+)">', text))
    for heading in re.findall(r"^#+ (.+)$", FENCE.sub("", text), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).strip().replace(" ", "-")
        found.add(slug)
    return found


def links(text: str) -> Iterator[tuple[str, str]]:
    """Target and anchor of each link that leads to no other site; "" for the page itself."""
    for target in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", text)):
        if not re.match(r"^[a-z]+:", target):
            page, _, anchor = target.partition("#")
            yield page, anchor


def table_cells(text: str) -> Iterator[str]:
    for line in FENCE.sub("", text).splitlines():
        if line.startswith("|"):
            yield from line.strip().strip("|").split("|")
