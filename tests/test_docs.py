"""The documentation keeps up with the code."""

import re
import runpy
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_configuration_page_is_that_of_the_code():
    page = runpy.run_path(str(ROOT / "docs/make_configuration.py"))
    assert (ROOT / "docs/configuration.md").read_text() == page["HEAD"] + page["table"]()
    keys = re.findall(r"^\| `([\w.]+)`", page["table"](), re.MULTILINE)
    from gigpo_jax.config import _all_keys, default_config

    config = default_config()
    free = ("model.shape.",)
    missing = [key for key in _all_keys(config) if "." in key and key not in keys and not key.startswith(free)]
    assert missing == []


def test_files_that_pages_name_are_there():
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name} links to {link}"
