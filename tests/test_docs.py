"""The documentation keeps up with the code."""

import hashlib
import re
import runpy
from pathlib import Path

from gigpo_jax.config import default_config
from gigpo_jax.config.keys import flatten
from gigpo_jax.env_bridge.actions import Response, parse_tagged
from gigpo_jax.env_bridge.agents import AGENTS
from gigpo_jax.env_bridge.prompts import Instruct, PromptInput
from gigpo_jax.envs.registry import ENVIRONMENTS
from gigpo_jax.rl.algorithms import ALGORITHMS
from gigpo_jax.rollout.demonstrations import response_text
from gigpo_jax.run.loggers.glossary import DESCRIPTIONS

ROOT = Path(__file__).parent.parent


def test_the_configuration_page_is_that_of_the_code():
    page = runpy.run_path(str(ROOT / "docs/make_configuration.py"))
    assert (ROOT / "docs/configuration.md").read_text() == page["page"]()


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
    digests = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in (ROOT / "docs/protocols").iterdir()
    }
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
        "sokoban_pooled.md": "6d3fad5621e9fb6e5fc6f719dff678d8ec27b586dc3f3d3ea7ea19e4e94298ed",
        "plans.md": "692a25a446c83ebd90de625675382d7be5e0f433166ee8b4e1dd3c4b3ce3a9d7",
        "summaries.md": "71ee69c2978ba095df8bbc87ab52de0566f3385f8754f8e0e03e901d85ede39a",
        "summaries_window.md": "ecbc7026b126a97e8217b67dc8b6098476e5c8f67611eb15909bf389778647b2",
        "tabular.md": "08a30b61db0cb9413d13f4ca9582155d648a05e15c0607cd337297cd6fc3341a",
        "webshop_pooled.md": "b6850748f3df4d710fd3321e9cbb72cea163ebf816fc854ddce01b666f1f683a",
    }


def test_the_guide_names_every_metric_that_the_loggers_describe():
    page = (ROOT / "docs/guide.md").read_text()
    assert [
        name
        for name in DESCRIPTIONS
        if f"`{name}`" not in page and f"`{name.split('/')[-1]}`" not in page
    ] == []


def test_sections_have_at_most_150_words_and_cells_25():
    """Words of paragraphs and lists; code and tables are not counted."""
    long_sections = []
    long_cells = []
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        text = re.sub(r"^ *```.*?^ *```$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
        for section in re.split(r"^(?=#+ )", text, flags=re.MULTILINE):
            lines = section.splitlines()
            prose = [line for line in lines[1:] if not line.startswith(("|", "    "))]
            if sum(len(line.split()) for line in prose) > 150:
                long_sections.append(f"{path.name}: {lines[0]}")
            cells = [cell for line in lines if line.startswith("|") for cell in line.split("|")]
            long_cells += [f"{path.name}: {cell}" for cell in cells if len(cell.split()) > 25]
    assert long_sections == []
    assert long_cells == []


def test_files_that_pages_name_are_there():
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name} links to {link}"


def test_verdicts_name_what_is_there_and_every_algorithm_has_one():
    page = (ROOT / "docs/related.md").read_text()
    cells = re.findall(r"^\| .+\| (.+) \|$", page, re.MULTILINE)
    verdicts = [cell for cell in cells if cell != "verdict"]
    openings = ("implemented as [`", "proposal as [`", "not here: ")
    assert [verdict for verdict in verdicts if not verdict.startswith(openings)] == []

    present = [verdict for verdict in verdicts if not verdict.startswith("not here")]
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
