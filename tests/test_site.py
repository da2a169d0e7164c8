"""The built site in a browser: nothing is cut off on wide or narrow screens, formulas are typeset,
and the search box works in files.

It needs `make docs` (.venv-docs), chromium and chromedriver.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
PYTHON = ROOT / ".venv-docs/bin/python"
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
        pytest.skip("needs .venv-docs (make docs)")
    folder = tmp_path_factory.mktemp("site")
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
    assert len(pages) > 60  # with those of notebooks, algorithms and the interface
    pages.remove("404.html")  # its addresses are those of a site on a server
    faults = {}
    for page in pages:
        browser.get(f"file://{site}/{page}")
        faults[page] = browser.execute_script(FAULTS)
    assert {page: found for page, found in faults.items() if found} == {}
    severe = [line for line in browser.get_log("browser") if line["level"] == "SEVERE"]
    assert severe == []  # nothing is asked of another site


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
