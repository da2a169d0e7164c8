"""The documentation keeps up with the code: pages, links, commands and code."""

import argparse
import ast
import hashlib
import importlib
import json
import re
import runpy
from pathlib import Path

import pytest

from gigpo_jax.config import default_config
from gigpo_jax.config.command_line import join_flags, load_config
from gigpo_jax.config.flags import make_parser
from gigpo_jax.config.keys import KEYS, flatten
from gigpo_jax.core.commands import MODES, TOOLS
from gigpo_jax.core.errors import InputError
from gigpo_jax.env_bridge.actions import Response, parse_tagged
from gigpo_jax.env_bridge.agents import AGENTS
from gigpo_jax.env_bridge.instructions import Instruct
from gigpo_jax.env_bridge.prompts import PromptInput
from gigpo_jax.envs import registry
from gigpo_jax.envs.registry import ENVIRONMENTS
from gigpo_jax.rl.algorithms import ALGORITHMS, find_algorithm
from gigpo_jax.rollout.demonstrations import response_text
from tests.doc_pages import (
    DOCS,
    FENCE,
    PLACEHOLDER,
    ROOT,
    anchors,
    blocks,
    command_lines,
    links,
    list_pages,
    page_exists,
    read_page,
    table_cells,
)

PAGES = list_pages()
NAMES = [str(path.relative_to(ROOT)) for path in PAGES]


def test_the_configuration_page_has_every_key():
    page = read_page(DOCS / "configuration.md")
    assert [name for name in KEYS if f"| `{name}`" not in page] == []
    assert (
        not (DOCS / "configuration.md").exists()
        or "configuration.md" in (ROOT / ".gitignore").read_text()
    )


def test_the_picture_of_the_tutorial_has_the_numbers_of_the_code():
    drawing = runpy.run_path(str(ROOT / "docs/make_tutorial.py"))
    assert (ROOT / "docs/credit_steps.svg").read_text() == drawing["draw"]()


def test_the_site_has_every_notebook():
    order = re.search(r"NOTEBOOKS = \((.*?)\)", (ROOT / "docs/hooks.py").read_text())[1]
    names = [name.strip(' "') for name in order.split(",")]
    assert sorted(names) == sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb"))


def test_the_published_configs_are_those_of_the_authors_scripts():
    settings = runpy.run_path(str(ROOT / "docs/make_settings.py"))
    assert settings["list_differences"]() == []
    assert (ROOT / "docs/settings.md").read_text() == settings["write_page"]()


def test_protocols_stay_as_they_were_committed_before_the_runs():
    digests = {}
    for path in (ROOT / "benchmarks/protocols").glob("*.md"):
        # They were committed in docs/protocols; their links moved with them.
        text = path.read_text(encoding="utf-8").replace("](../../docs/", "](../")
        digests[path.name] = hashlib.sha256(text.encode()).hexdigest()
    del digests["README.md"]
    assert digests == {
        "alfworld_pooled.md": "cc4f364c41ec64dc3bddc7bdb758aadd0f2bf13077d219aaa91e4de74a21cdf0",
        "babyai.md": "a6862bb433dc7ee80654125994e45588579849172831e3b232413b316a80c152",
        "babyai_rates.md": "ac5bd67f26c12e8e54723bffe66879dd4687a85ce706da09d34d4862b889bbc9",
        "belief_anchor.md": "7e9102e359068a11f9a8b2dae51b39605e984c2023fcb73d54c529036fad26b0",
        "equal_tokens.md": "5d6d42527b7e4b350a06f7bfd832550f693a181ac6096dcfe0e7390ad9faf0d4",
        "fork_learning.md": "c3e96749ec401310e3ae782abce5fc1165ae21ee6b6345dd0a3199230630607e",
        "fork_credit.md": "e921f87f04676abeb11e96762c019e784b32fcf62fa0b6f6e8ebec97d5dbcd9a",
        "forks.md": "1391aca2b7f080bdd3205aa185238f156060f22eecd67d4292907cd9b083c5de",
        "frozenlake_pooled.md": "f60b952dba79c55a1a0f6ede5a54bb881068bb488a30a1732a9fe4b5ddfad808",
        "lake_forks.md": "3cd34a7f888397871ef95587229431ee23c5d47fc0bf9018725be2183671c217",
        "learned_rewards.md": "dd2f9923269af7025a150dff35c5e28af118cb1d3a490bcc81d8c2d094963730",
        "mcp_tiny.md": "6bef2c416195ba38e31ce40a804abd87d8037130ba173494ef0292d0504408dc",
        "methods.md": "a9efbcba8fc140a6c47e077fb8161dffdca5501f8d38a48619ef931878369277",
        "muon.md": "2eb007ea35870be1c8ca174b98a5ba7fcb83c8fa971efd6c2bfec81652508077",
        "pooled_combined.md": "e71164847bafe06871ee819846aca1de1674de44ad4954003a1dd667f657f55f",
        "webshop_100.md": "bf9421a437c3734de5d6cbbbcba4597a3781902fee4da50b4c9b7edd3d102115",
        "repeat_discount.md": "26d4d40f44246b939b77bd120e2f0ce37cd90a41b56fa6aea60ef663e1765a1d",
        "shell_tiny.md": "5325850fab871f3945cf206596506a0e57605c63fbb149ae903efa9c9e5cf5f2",
        "smollm_alfworld.md": "2fed665658d21d9bd062a82f33988e11b3d2cd8e1dad84eeb63fee8e761ded40",
        "smollm_alfworld_gpu.md": "ba22caf3da358f9b5798b46d9f0b2c6f87804443fde85899063fd5292ebc1cb0",
        "smollm_drawers.md": "f7a0c8b0360e017fff6a531bd20cf01e17805a66d127d312132e95485969df8e",
        "smollm_drawers_gpu.md": "7564b5252ca7743611a436095233b971f1ff16bce87510843088967717ebaa69",
        "sokoban_pooled.md": "6d3fad5621e9fb6e5fc6f719dff678d8ec27b586dc3f3d3ea7ea19e4e94298ed",
        "plans.md": "692a25a446c83ebd90de625675382d7be5e0f433166ee8b4e1dd3c4b3ce3a9d7",
        "summaries.md": "71ee69c2978ba095df8bbc87ab52de0566f3385f8754f8e0e03e901d85ede39a",
        "summaries_window.md": "ecbc7026b126a97e8217b67dc8b6098476e5c8f67611eb15909bf389778647b2",
        "tabular.md": "600850d38641c1f9da1edebfd63e5f94b5b48e80041dffa6c03ed70c2574f289",
        "webshop_decomposed.md": "5111a7c7bc518767f2350e75d0f4a0323ac86e4d4569056ba2aecc944704c234",
        "webshop_pooled.md": "b6850748f3df4d710fd3321e9cbb72cea163ebf816fc854ddce01b666f1f683a",
    }


def test_the_page_of_metrics_is_that_of_the_loggers():
    metrics = runpy.run_path(str(ROOT / "docs/make_metrics.py"))
    assert (ROOT / "docs/metrics.md").read_text() == metrics["page"]()


def test_the_table_of_algorithms_is_that_of_the_catalogue():
    table = runpy.run_path(str(ROOT / "docs/make_algorithms.py"))
    assert (ROOT / "docs/algorithms.md").read_text() == table["page"]()
    # A page that the table names speaks of the algorithm.
    rows = re.findall(r"^\| `(\w+)`[^|]*\| \[[^|]*\]\((.+)\)", table["page"](), re.MULTILINE)
    assert len(rows) == len(ALGORITHMS)
    for name, page in rows:
        text = read_page(DOCS / page)
        headings = [anchor for anchor in anchors(text) if anchor.startswith(name)]
        assert headings or re.search(rf"[`=]{name}\b", text), name


def test_every_method_has_a_short_page_with_its_paper_a_command_and_its_tests():
    folders = [path.parent for path in (ROOT / "gigpo_jax/methods").glob("*/__init__.py")]
    assert len(folders) > 25
    for folder in folders:
        text = (folder / "README.md").read_text()
        assert 60 <= len(text.split()) <= 280, folder.name
        assert "(https://arxiv.org/abs/" in text or "A proposal of this project." in text, folder
        assert [*command_lines(text)] != [], folder.name
        assert "Keys: `" in text, folder.name
        assert "/tests/" in text, folder.name


def test_tables_begin_with_a_head():
    """A row behind an empty line is no part of the table above."""
    broken = []
    for path in PAGES:
        lines = ["", *FENCE.sub("", read_page(path)).splitlines(), ""]
        for previous, line, following in zip(lines, lines[1:], lines[2:]):
            if line.startswith("|") and not previous.strip() and not following.startswith("|--"):
                broken.append(f"{path.name}: {line}")
    assert broken == []


def test_cells_of_tables_have_at_most_25_words():
    cells = [(path.name, cell) for path in PAGES for cell in table_cells(read_page(path))]
    assert [(name, cell) for name, cell in cells if len(cell.split()) > 25] == []


@pytest.mark.parametrize("path", PAGES, ids=NAMES)
def test_links_lead_to_files_and_headings(path: Path):
    broken = []
    for target, anchor in links(read_page(path)):
        page = (path.parent / target).resolve() if target else path
        if not page_exists(page):
            broken.append(target)
        elif anchor and page.suffix == ".md" and anchor not in anchors(read_page(page)):
            broken.append(f"{target}#{anchor}")
    assert broken == []


def test_no_page_or_message_installs_from_an_index_that_does_not_have_the_package():
    """Nothing is published: an extra is installed from a clone."""
    texts = {path: read_page(path) for path in PAGES}
    for folder in ("gigpo_jax", "configs", "examples", "launch"):
        texts |= {path: path.read_text() for path in (ROOT / folder).rglob("*.py")}
    assert [
        str(path) for path, text in texts.items() if re.search(r"install ['\"]?gigpo_jax\[", text)
    ] == []


@pytest.mark.parametrize("path", PAGES, ids=NAMES)
def test_code_of_pages_can_be_parsed(path: Path):
    for language, code in blocks(read_page(path)):
        if language == "python":
            ast.parse(code)
        elif language == "json":
            json.loads(code)


@pytest.mark.parametrize("path", PAGES, ids=NAMES)
def test_commands_of_pages_are_read_by_their_own_parsers(
    path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.chdir(ROOT)
    for words in command_lines(read_page(path)):
        try:
            check_command(words, monkeypatch, tmp_path)
        except (Exception, SystemExit) as error:
            raise AssertionError(f"{' '.join(words)}\n{type(error).__name__}: {error}") from error


def check_command(words: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Raises if a command of this project does not exist or refuses its flags."""
    programs = [Path(word).name for word in words]
    if "gigpo" in programs[:4]:
        check_gigpo(words[programs.index("gigpo") + 1 :], monkeypatch, tmp_path)
    elif programs[0] == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert {word for word in words[1:] if "=" not in word} <= {*targets}
    elif "-m" in words and words[words.index("-m") + 1].startswith("benchmarks."):
        assert (ROOT / f"{words[words.index('-m') + 1].replace('.', '/')}.py").exists()
    elif programs[0].startswith("python") and words[1].endswith(".py"):
        assert (ROOT / words[1]).exists()
    elif words[0].startswith("launch/"):
        assert (ROOT / words[0]).exists()
    if "pip" in programs and "install" in words:
        extras = runpy_setup()
        for extra in re.findall(r"\.\[([\w,-]+)\]", " ".join(words)):
            assert {*extra.split(",")} <= extras, extra


def runpy_setup() -> set[str]:
    """The extras of setup.py."""
    tree = ast.parse((ROOT / "setup.py").read_text())
    extras = next(
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.keyword) and node.arg == "extras_require"
    )
    assert isinstance(extras, ast.Dict)
    worlds = {"gymnasium", "openenv", "verifiers"}  # worlds/ has some of them
    return {ast.literal_eval(key) for key in extras.keys if key is not None} | worlds


def check_gigpo(words: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    command, *flags = [word for word in words if word != "FLAGS" and word[0] != "$"]
    if command in ("COMMAND", "--help"):
        return
    if command in MODES:
        joined = join_flags([f"--mode={command}", *flags])
        _, rest = make_parser(command).parse_known_args(joined)
        assert [word for word in rest if not word.startswith("--config.")] == []
        check_keys(joined, monkeypatch, tmp_path)
        return
    rest = parse_tool(command, flags, monkeypatch)
    assert [word for word in rest if not word.startswith("--config")] == []
    if rest:
        check_keys(flags, monkeypatch, tmp_path)


class Parsed(Exception):
    """The flags of a command, once its own parser has read them."""

    def __init__(self, rest: list[str]) -> None:
        super().__init__()
        self.rest = rest


def parse_tool(name: str, words: list[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Runs a tool up to its parser; returns the words that the parser did not know."""
    parse = argparse.ArgumentParser.parse_known_args

    def stop(self, args=None, namespace=None):
        raise Parsed(parse(self, args, namespace)[1])

    module = importlib.import_module(f"gigpo_jax.{TOOLS[name].module}")
    with monkeypatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, "parse_known_args", stop)
        with pytest.raises(Parsed) as caught:
            module.main(words)
    return caught.value.rest


def check_keys(words: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Loads the config of a command: its keys exist and their values are of the right type.

    A config of the reader's own, and an environment that is not here, are replaced by defaults.
    A folder of examples/ with a config of that name is where the reader is.
    """
    flags = [word for word in join_flags(words) if word.startswith("--config")]
    config = next((word.partition("=")[2] for word in flags if word.startswith("--config=")), "")
    # A variant that is a variable of the shell is left out.
    name, _, variant = config.partition(":")
    if "$" in variant:
        config = name
    folders = [ROOT, *(ROOT / "examples").iterdir()]
    files = [folder / name for folder in folders if name and (folder / name).is_file()]
    packaged = (ROOT / f"configs/{name}.py").is_file()
    overrides = [word for word in flags if word.startswith("--config.")]
    if not packaged and not files:
        blank = tmp_path / "blank.py"
        blank.write_text("from gigpo_jax.config import default_config as get_config\n")
        config = str(blank)
    elif files and not packaged:
        config = config.replace(name, str(files[0]), 1)
        monkeypatch.syspath_prepend(files[0].parents[len(Path(name).parts) - 1])
    for word in list(overrides):
        key, _, value = word.removeprefix("--config.").partition("=")
        if key in ("env.name", "rl.algorithm") and ":" in value:
            try:
                registry.spec(value) if key == "env.name" else find_algorithm(value, {})
            except InputError:  # a module of the reader, or a package that is not installed
                overrides.remove(word)
                section = "env.options." if key == "env.name" else "rl.settings."
                overrides = [w for w in overrides if not w.startswith(f"--config.{section}")]
        elif "$" in value or (key in KEYS and PLACEHOLDER.fullmatch(value)):
            overrides.remove(word)
    load_config(config, overrides)


def test_verdicts_name_what_is_there_and_every_algorithm_has_one():
    page = (ROOT / "docs/related.md").read_text()
    cells = re.findall(r"^\| .+\| (.+) \|$", page, re.MULTILINE)
    verdicts = [cell for cell in cells if cell != "verdict"]
    openings = ("[`", "proposal as [`", "not here: ", "not checked: ")
    assert [verdict for verdict in verdicts if not verdict.startswith(openings)] == []

    present = [verdict for verdict in verdicts if not verdict.startswith("not ")]
    names = {name for verdict in present for name in re.findall(r"\[`(.+?)`\]", verdict)}
    catalogues = {*ALGORITHMS, *ENVIRONMENTS, *AGENTS, *flatten(default_config())}
    assert names - catalogues == set()
    lessons = {"example"}  # of docs/environments.md, which no paper names
    assert {*ALGORITHMS, *ENVIRONMENTS} - names - lessons == set()


def test_the_agent_of_the_page_asks_and_reads():
    page = (ROOT / "docs/agents.md").read_text()
    names: dict = {}
    exec(re.search(r"```python\n(.*?)```", page, re.DOTALL)[1], names)
    prompt = names["COT"].template(Instruct("A house."), {})(
        PromptInput("find it", "", (), 0, "A room.", None)
    )
    assert prompt.startswith("A house.\nTask: find it\nNow: A room.\n")
    read = names["COT"].make_parser(parse_tagged, response_text)
    assert read("It is here.\nAction: Look") == Response("look", True, "It is here.")
