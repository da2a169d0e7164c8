"""The documentation keeps up with the code."""

import re
import runpy
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_configuration_page_is_that_of_the_code():
    page = runpy.run_path(str(ROOT / "docs/make_configuration.py"))
    assert (ROOT / "docs/configuration.md").read_text() == page["page"]()


def test_files_that_pages_name_are_there():
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name} links to {link}"
