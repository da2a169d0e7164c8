"""The built site in a browser: nothing is cut off on wide or narrow screens, formulas are typeset,
and the search box works in files.

It needs `make docs` (.venv-tools), chromium and chromedriver.
"""

import html
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
PYTHON = ROOT / ".venv-tools/bin/python"
FAULTS = """
const faults = [];
const name = element => element.innerText.trim().slice(0, 60);
const root = document.documentElement;  // innerWidth grows with the page on narrow screens
if (root.scrollWidth > root.clientWidth) faults.push("the page scrolls sideways");
for (const code of document.querySelectorAll(".md-content pre > code"))
  if (code.scrollWidth > code.clientWidth + 1) faults.push("code is cut off: " + name(code));
for (const table of document.querySelectorAll(".md-content table")) {
  const room = table.closest(".md-typeset__scrollwrap") || table.parentElement;
  if (innerWidth >= 1280 && table.scrollWidth > room.clientWidth + 1)
    faults.push("table is cut off: " + name(table));
}
for (const code of document.querySelectorAll(".md-content td code"))
  if (/^[\\w.]+$/.test(code.innerText) && code.getClientRects().length > 1)
    faults.push("identifier is broken: " + name(code));
for (const formula of document.querySelectorAll(".arithmatex"))
  if (!formula.querySelector(".katex-html")) faults.push("formula is not typeset: " + name(formula));
return faults;
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not PYTHON.exists():
        pytest.skip("needs .venv-tools (make docs)")
    folder = tmp_path_factory.mktemp("site")
    script = [sys.executable, "docs/make_configuration.py"]
    subprocess.run(script, cwd=ROOT, check=True, timeout=120)
    command = [str(PYTHON), "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environ = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    environ.pop("PYTHONPATH", None)
    done = subprocess.run(
        command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if not (shutil.which("chromium") and shutil.which("chromedriver")):
        pytest.skip("needs chromium and chromedriver (apt-get install chromium chromium-driver)")
    webdriver = pytest.importorskip("selenium.webdriver")
    options = webdriver.ChromeOptions()
    arguments = ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--hide-scrollbars")
    for argument in arguments:
        options.add_argument(argument)
    # Other sites cannot be reached, as for a reader without a network.
    options.add_argument("--host-resolver-rules=MAP * ~NOTFOUND")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(
        options, webdriver.ChromeService(executable_path=shutil.which("chromedriver"))
    )
    driver.set_page_load_timeout(60)
    driver.set_script_timeout(30)
    yield driver
    driver.quit()


def set_width(browser: Any, width: int) -> None:
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_is_cut_off(browser: Any, site: Path, width: int) -> None:
    set_width(browser, width)
    pages = [str(path.relative_to(site)) for path in sorted(site.rglob("*.html"))]
    assert len(pages) > 60  # with pages of notebooks, algorithms and the interface
    pages.remove("404.html")  # its addresses are for a site on a server
    faults = {}
    for page in pages:
        browser.get(f"file://{site}/{page}")
        faults[page] = browser.execute_script(FAULTS)
    assert {page: found for page, found in faults.items() if found} == {}
    severe = [line for line in browser.get_log("browser") if line["level"] == "SEVERE"]
    assert severe == []  # nothing is asked of another site


LINES = """
const counts = [];
for (const block of document.querySelectorAll(".md-content p, .md-content li")) {
  if (block.closest("table, pre, .doc-signature")) continue;
  const lines = {};
  const walker = document.createTreeWalker(block, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode;
    if (node.parentElement.closest(".katex, li") !== (block.tagName == "LI" ? block : null)) continue;
    for (let i = 0; i < node.length; i++) {
      const range = document.createRange();
      range.setStart(node, i); range.setEnd(node, i + 1);
      const box = range.getBoundingClientRect();
      if (box.width) { const y = Math.round(box.bottom / 8); lines[y] = (lines[y] || 0) + 1; }
    }
  }
  counts.push(...Object.values(lines));
}
return Math.max(0, ...counts);
"""


def test_lines_of_text_have_at_most_80_characters(browser: Any, site: Path) -> None:
    set_width(browser, 1440)
    longest = {}
    for page in (
        "tutorial.html",
        "guide.html",
        "environments.html",
        "algorithm.html",
        "serve.html",
    ):
        browser.get(f"file://{site}/{page}")
        longest[page] = browser.execute_script(LINES)
    assert max(longest.values()) <= 80, longest
    assert min(longest.values()) >= 60, longest  # and the column is no narrower than it need be


def test_labels_of_the_navigation_are_the_titles_of_pages(site: Path) -> None:
    labels = {}
    for target, label in re.findall(
        r'<a href="([^"#:]+\.html)" class="md-nav__link[^"]*">\s*(?:<span[^>]*>)?(.*?)</',
        (site / "index.html").read_text(),
        re.DOTALL,
    ):
        title = re.search(r"<h1[^>]*>(.*?)(?:<a |</h1>)", (site / target).read_text(), re.DOTALL)
        assert title is not None, target
        labels[target] = (strip_tags(label), strip_tags(title[1]))
    assert len(labels) > 50
    assert {page: pair for page, pair in labels.items() if pair[0] != pair[1]} == {}


def strip_tags(text: str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]+>", "", text)).split())


def test_the_search_box_works_in_files(browser: Any, site: Path) -> None:
    from selenium.webdriver.support.wait import WebDriverWait

    set_width(browser, 1280)
    browser.get(f"file://{site}/index.html")
    box = browser.find_element("css selector", ".md-search__input")
    box.click()
    box.send_keys("glossary")
    WebDriverWait(browser, 60).until(
        lambda driver: driver.find_elements(
            "css selector", ".md-search-result__link[href*='glossary.html']"
        )
    )
