"""What the site has beside docs/: pages of the root, the notebooks, the protocols, a page for each
algorithm (see mkdocs.yml).

Links are written as GitHub reads them. Those that leave docs/ are rewritten here, or become plain
text where the site has no such page.
"""

import json
import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
CONFIGURATION = "configuration.md"
# The row of a key in its table; options of environments and algorithms have their own headings.
ROW = re.compile(
    r"^\| `((?!env\.options\.|env\.generate\.|sft\.demonstrator\.|rl\.settings\.)[a-z_]+(?:\.[a-z_]+)+)`",
    re.MULTILINE,
)
CORE = ("graph_values", "ppo", "reinforce_pp", "rloo", "repeat_discount", "variants")
# Name of a page -> its module; a method without advantages has its README alone.
READMES = {path.parent.name: path for path in (ROOT / "gigpo_jax/methods").glob("*/README.md")}
METHODS = {
    **{name: f"gigpo_jax.rl.{name}" for name in CORE},
    **{
        name: f"gigpo_jax.methods.{name}.advantages"
        if path.with_name("advantages.py").exists()
        else ""
        for name, path in READMES.items()
    },
}
# The files of a method -> its page.
METHOD_PAGES = {
    **{
        f"{module.replace('.', '/')}.py": f"algorithms/{name}.md"
        for name, module in METHODS.items()
    },
    **{f"gigpo_jax/methods/{name}/README.md": f"algorithms/{name}.md" for name in READMES},
}
NOTEBOOKS = ("train", "advantages", "worlds", "talk_to_a_model", "colab")  # in reading order
PAGES = {  # file of the repository -> page of the site, for what is not in docs/
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    **{f"notebooks/{name}.ipynb": f"notebooks/{name}.md" for name in NOTEBOOKS},
    **{
        f"benchmarks/protocols/{path.name}": f"protocols/{path.name}"
        for path in (ROOT / "benchmarks/protocols").glob("*.md")
        if path.name != "README.md"
    },
}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Fills the empty lists of the navigation."""
    groups = [entry for entry in config.nav if isinstance(entry, dict)]
    sections = {title: pages for entry in groups for title, pages in entry.items()}
    sections["Start"][-1]["Notebooks"] += [f"notebooks/{name}.md" for name in NOTEBOOKS]
    sections["Algorithms"][-1]["Methods"] += [f"algorithms/{name}.md" for name in sorted(METHODS)]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages."""
    for source, page in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(
            File.generated(
                config, page, content=notebook(text) if source.endswith(".ipynb") else text
            )
        )
    rows = read_configuration().splitlines()
    for name in METHODS:
        files.append(File.generated(config, f"algorithms/{name}.md", content=algorithm(name, rows)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrites the links of a page."""
    # A README is the last file of its page in METHOD_PAGES.
    sources = {target: source for source, target in (PAGES | METHOD_PAGES).items()}
    source = sources.get(page.file.src_uri, f"docs/{page.file.src_uri}")

    def link(found: re.Match[str]) -> str:
        image, text, target, anchor = found.groups()
        inside = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        there = PAGES.get(inside) or METHOD_PAGES.get(inside)
        if there is None and inside.startswith("docs/"):
            there = inside.removeprefix("docs/")
        if there is None:
            return text
        return f"{image}[{text}]({posixpath.relpath(there, posixpath.dirname(page.file.src_uri))}{anchor or ''})"

    markdown = re.sub(r"(!?)\[([^\]]*)\]\(([^)#:\s]+)(#[^)]*)?\)", link, markdown)
    if page.file.src_uri == CONFIGURATION:
        return mark_rows(markdown)
    return link_keys(
        markdown, posixpath.relpath(CONFIGURATION, posixpath.dirname(page.file.src_uri))
    )


def read_configuration() -> str:
    """The page that docs/make_configuration.py wrote: it needs jax, which the site does not."""
    path = ROOT / "docs" / CONFIGURATION
    if not path.exists():
        raise PluginError("docs/configuration.md is missing; make docs writes it")
    return path.read_text(encoding="utf-8")


def mark_rows(markdown: str) -> str:
    """Gives every key an anchor, and links the algorithms of the settings to their pages."""
    markdown = ROW.sub(r'| <a id="\1"></a>`\1`', markdown)
    names = "|".join(METHODS)
    return re.sub(rf"^\| ({names}) \|", r"| [\1](algorithms/\1.md) |", markdown, flags=re.MULTILINE)


def link_keys(markdown: str, configuration: str) -> str:
    """Links config keys in running text, such as `train.groups`, to their row."""
    keys = {*ROW.findall(read_configuration())}

    def link(found: re.Match[str]) -> str:
        key = found[1]
        return f"[{found[0]}]({configuration}#{key})" if key in keys else found[0]

    # Blocks of code, headings and links.
    others = r"(^ *```.*?^ *```$|^(?:#| {4})[^\n]*$|\[[^\]]*\]\([^)]*\))"
    pieces = re.split(others, markdown, flags=re.MULTILINE | re.DOTALL)
    pieces[::2] = [
        re.sub(r"`([a-z_]+(?:\.[a-z_]+)+)(?:=[^`]*)?`", link, piece) for piece in pieces[::2]
    ]
    return "".join(pieces)


def notebook(text: str) -> str:
    """A notebook's cells, with the text that they print and the pictures they draw, as Markdown."""
    parts = []
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        parts += [notebook_output(output) for output in cell.get("outputs", [])]
    return "\n\n".join(parts)


def notebook_output(output: dict) -> str:
    """Text in a block, or a picture that is part of the page."""
    if output["output_type"] == "stream":
        return "```text\n{}\n```".format("".join(output["text"]).rstrip())
    data = "".join(output["data"]["image/png"]).replace("\n", "")
    return f'<img alt="the picture that the cell draws" src="data:image/png;base64,{data}">'


def algorithm(name: str, rows: list[str]) -> str:
    """The page of a method: its README, its docstrings, and its rows in the table of settings."""
    settings = [row for row in rows if row.startswith(f"| {name} |")]
    table = [
        "## Settings",
        "",
        "| algorithm | key | default | values | meaning |",
        "|---|---|---|---|---|",
        *settings,
    ]
    head = READMES[name].read_text(encoding="utf-8") if name in READMES else f"# {name}\n"
    module = ["", f"::: {METHODS[name]}", ""] if METHODS[name] else []
    return "\n".join([head, *module, *(table if settings else [])])
