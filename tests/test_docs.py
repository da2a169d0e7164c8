"""The documentation keeps up with the code."""

import re
import runpy
from pathlib import Path

from gigpo_jax.env_bridge.actions import Response, parse_tagged
from gigpo_jax.env_bridge.prompts import Instruct, PromptInput
from gigpo_jax.rollout.demonstrations import response_text
from gigpo_jax.run.glossary import DESCRIPTIONS

ROOT = Path(__file__).parent.parent


def test_the_configuration_page_is_that_of_the_code():
    page = runpy.run_path(str(ROOT / "docs/make_configuration.py"))
    assert (ROOT / "docs/configuration.md").read_text() == page["page"]()


def test_the_guide_names_every_metric_that_the_loggers_describe():
    page = (ROOT / "docs/guide.md").read_text()
    assert [name for name in DESCRIPTIONS if f"`{name}`" not in page and f"`{name.split('/')[-1]}`" not in page] == []


def test_files_that_pages_name_are_there():
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name} links to {link}"


def test_the_agent_of_the_page_asks_and_reads():
    page = (ROOT / "docs/agents.md").read_text()
    names: dict = {}
    exec(re.search(r"```python\n(.*?)```", page, re.DOTALL)[1], names)
    prompt = names["COT"].template(Instruct("A house."), {})(PromptInput("find it", "", (), 0, "A room.", None))
    assert prompt.startswith("A house.\nTask: find it\nNow: A room.\n")
    read = names["COT"].parser(parse_tagged, response_text)
    assert read("It is here.\nAction: Look") == Response("look", True, "It is here.")
