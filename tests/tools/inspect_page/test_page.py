"""The page of a run: what is in it, that no text can break out of it, and what a reader can do in a
browser.
"""

import base64
import gzip
import json
import re
import shutil
import socket
import struct
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gigpo_jax.core.png import encode_png
from gigpo_jax.env_bridge.types import IMAGE
from gigpo_jax.rollout.read_record import read_rollouts
from gigpo_jax.rollout.record import write_rollouts
from gigpo_jax.tools.inspect import data
from gigpo_jax.tools.inspect.command import main
from gigpo_jax.tools.inspect.data import collect_pages, collect_run, measure_disagreement
from gigpo_jax.tools.inspect.page import encode_for_script, render_page
from gigpo_jax.tools.inspect.serve import make_server
from tests.file_limit import largest_file
from tests.tools.inspect_page.runs import long_prompts, step, write_run

HOSTILE = (
    '</script><img src=x onerror="window.hit=1"><script>window.hit=2</script>'
    "&amp;<!--\u2028'\"`${window.hit=3}\x1b[31m @GROUPS@ @DATA@"
)


def unpacked(text: str) -> Any:
    return json.loads(gzip.decompress(base64.b64decode(text)))


def test_the_page_has_every_step_with_its_credit(tmp_path: Path):
    page, packed = collect_run(write_run(tmp_path / "run"), "a", {})
    assert [group["id"] for group in page["groups"]] == ["a0", "a1"]
    assert page["groups"][0]["won"] == [True, False]
    rates = [[0, 0.0], [1, 0.25], [2, 0.5], [3, 0.75]]
    assert page["curves"]["episode/success_rate"] == rates
    first = unpacked(packed["a0"])
    last_step = first["episodes"][1]["steps"][2]
    assert (last_step["episode"], last_step["step"], last_step["total"], last_step["group"]) == (
        -1.0,
        2.5,
        1.5,
        2,
    )
    assert first["texts"][last_step["prompt"]] == "prompt 2: a key"
    assert first["pieces"] == {"0": "go ", "1": "a key"}


def test_the_page_says_which_machines_a_run_was_on(tmp_path: Path):
    run = write_run(tmp_path / "run")
    assert collect_run(run, "a", {})[0]["machines"] == ()
    starts = [{"done": 0, "cpu": "A"}, {"done": 3, "cpu": "B", "packages": {"jax": "1.2"}}]
    (run / "machine.json").write_text(json.dumps({"starts": starts}))
    assert collect_run(run, "a", {})[0]["machines"] == ("A", "B, jax 1.2")


def test_the_panel_has_intervals_by_type_and_leaves_out_aborted_tasks(tmp_path: Path):
    page, _ = collect_run(write_run(tmp_path / "run"), "a", {})
    first_evaluation, last_evaluation = page["panel"]["evaluations"]
    assert [(row["type"], row["won"], row["tasks"]) for row in first_evaluation["rows"]] == [
        ("all", 1, 3),
        ("look", 1, 2),
        ("pick", 0, 1),
    ]
    assert last_evaluation["rows"][0]["interval"] == pytest.approx(
        (0.4385, 1.0), abs=1e-3
    )  # Wilson, 3 of 3


def measured_run(folder: Path, *, advantage: float) -> Path:
    """A run in which one step of the second task group was measured."""
    run = write_run(folder)
    credit = run / "credit" / "iteration_000002"
    credit.mkdir(parents=True)
    shutil.copy(next((run / "rollouts").iterdir()), credit / "rollouts.jsonl.gz")
    step_of = {
        "group": 1,
        "member": 0,
        "step": 2,
        "advantage": advantage,
        "error": 0.1,
        "regret": 2.0,
    }
    (credit / "grades.json").write_text(json.dumps({"steps": [step_of]}))
    return run


def test_measured_advantages_stand_beside_the_estimates(tmp_path: Path):
    run = measured_run(tmp_path / "run", advantage=0.25)
    page, packed = collect_run(run, "a", {})
    assert [group["measured"] for group in page["groups"]] == [False, True, False, False]
    assert unpacked(packed["a1"])["episodes"][0]["steps"][2]["oracle"] == [0.25, 0.1]
    assert unpacked(packed["a1"])["episodes"][0]["steps"][2]["regret"] == 2.0
    assert unpacked(packed["a1"])["episodes"][0]["steps"][1]["oracle"] is None


def test_the_levels_disagree_as_far_as_both_mean_it():
    assert measure_disagreement(step(0, "", group=0, episode=-0.9, local=1.8)) == 0.9
    assert measure_disagreement(step(0, "", group=0, episode=0.9, local=1.8)) == 0.0
    assert measure_disagreement(step(0, "", group=0, episode=0.0, local=1.8)) == 0.0


def seen() -> list[tuple[bytes, ...]]:
    """Pictures of three steps: one; one that is wider than a telephone, and the first again;
    none.
    """
    small, wide = (
        encode_png(np.full((28, width, 3), width % 256, np.uint8)) for width in (56, 560)
    )
    return [(small,), (wide, small), ()]


def test_a_picture_is_in_the_page_once(tmp_path: Path):
    (small,), (wide, _), _ = pictures = seen()
    pages, packed = collect_pages(
        [write_run(tmp_path / name, pictures=pictures) for name in ("one", "two")]
    )
    assert {key: base64.b64decode(value) for key, value in packed.items() if key[0] == "p"} == {
        "p0": small,
        "p1": wide,
    }
    assert [group["picture"] for page in pages for group in page["groups"]] == [0, 0, 0, 0]
    for group in ("a1", "b0"):
        steps = unpacked(packed[group])["episodes"][1]["steps"]
        assert [step["pictures"] for step in steps] == [[0], [1, 0], []]


def test_pictures_are_those_of_the_observation_and_not_of_earlier_ones(tmp_path: Path):
    run = write_run(tmp_path / "run", text=f"{IMAGE}a key", pictures=seen())
    _, packed = collect_pages([run])
    steps = unpacked(packed["a0"])["episodes"][0]["steps"]
    assert [step["pictures"] for step in steps] == [[0], [0], []]


def test_a_page_that_grows_too_large_takes_fewer_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    pictures = [(encode_png(np.full((2, 2, 3), i, np.uint8)) + bytes(3000),) for i in range(3)]
    run = write_run(tmp_path / "run", tasks=9, pictures=pictures)
    monkeypatch.setattr(
        data, "MAX_BYTES", 12_200
    )  # less than the pictures take, which are in the first group
    page, packed = collect_run(run, "a", {})
    assert len(page["groups"]) == len(packed) == 1
    monkeypatch.setattr(data, "MAX_BYTES", 2 * 12_200)
    assert len(collect_run(run, "a", {})[0]["groups"]) == 9


def test_data_cannot_end_its_script_element():
    text = encode_for_script({"x": HOSTILE})
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {"x": HOSTILE}


def test_the_page_loads_nothing(tmp_path: Path):
    page = render_page([write_run(tmp_path / "run", text=HOSTILE)])
    assert not re.search(r"(src|href)\s*=\s*[\"']?(https?:)?//", page)
    assert page.count("</script>") == 2 + 2  # data, code, and two groups; none from a text


@pytest.mark.slow
def test_five_hundred_long_episodes_stay_small(tmp_path: Path):
    """25 steps of 500 episodes with 100 random words each, which compress worse than any prompt."""
    page = render_page([long_prompts(tmp_path / "run", 496, 25, 100)])
    assert len(page) < 20e6
    assert (
        len(re.sub(r'<script type="text/plain".*?</script>', "", page, flags=re.S)) < 100e3
    )  # what is read at once


def test_bad_input_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture):
    good = write_run(tmp_path / "good")
    damaged = write_run(tmp_path / "damaged")
    torn = write_run(tmp_path / "torn")
    with open(torn / "metrics.jsonl", "a") as metrics:
        metrics.write('{"step":')
    file = next((damaged / "rollouts").iterdir())
    file.write_bytes(file.read_bytes()[:-9])
    young = write_run(tmp_path / "young")
    (young / "metrics.jsonl").unlink()
    near = f" (nearest: {good})"
    for arguments, named in (
        ([str(tmp_path / "goood")], f"holds no run; give the workdir of a training run{near}"),
        ([str(good / "config.json")], "holds no run; give the workdir"),
        ([str(young)], "has no metrics yet"),
        ([str(torn)], "holds no run that can be read (Expecting"),
        ([str(damaged)], file.name),
        ([str(good)] * 3, "RUN: 3 given; give one or two"),
        ([str(good), "--out", str(tmp_path / "no" / "where.html")], "cannot be written"),
    ):
        assert main(arguments) == 2
        error_text = capsys.readouterr().err
        assert named in error_text
        assert error_text.count("\n") == 1
    assert main([str(good)]) == 0
    assert (good / "inspect.html").exists()


def test_a_page_that_cannot_be_written_leaves_the_old_one(
    tmp_path: Path, capsys: pytest.CaptureFixture
):
    run = write_run(tmp_path / "run")
    path = tmp_path / "page" / "page.html"
    path.parent.mkdir()
    path.write_text("the page of yesterday")
    with largest_file(4096):
        assert main([str(run), "--out", str(path)]) == 2
    assert "cannot be written" in capsys.readouterr().err
    assert path.read_text() == "the page of yesterday"
    assert list(path.parent.iterdir()) == [path]


def test_the_server_follows_a_run(tmp_path: Path):
    run = write_run(tmp_path / "run")
    with make_server([run], 0) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        base = f"http://127.0.0.1:{running.server_address[1]}/"

        def get(path: str) -> str:
            return urllib.request.urlopen(base + path, timeout=10).read().decode()

        version = get("version")
        assert '"live":true' in get("")
        assert get("version") == version
        with (run / "metrics.jsonl").open("a") as file:
            file.write('{"step": 4, "episode/success_rate": 0.875}\n')
        assert get("version") != version
        assert "0.875" in get("")
        with pytest.raises(urllib.error.HTTPError):
            get("etc/passwd")
        rebound = urllib.request.Request(base, headers={"Host": "attacker.example"})
        with pytest.raises(urllib.error.HTTPError, match="400"):
            urllib.request.urlopen(rebound, timeout=10)
        running.shutdown()


def test_a_reader_who_goes_away_leaves_no_traceback(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    run = write_run(tmp_path / "run")
    with make_server([run], 0) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        others = threading.active_count()
        for _ in range(5):
            with socket.create_connection(("127.0.0.1", running.server_address[1])) as reader:
                reader.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
                # No time to wait for the rest: closing resets the connection.
                reader.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        # An answer after all of them; then their threads have ended too.
        urllib.request.urlopen(f"http://127.0.0.1:{running.server_address[1]}/", timeout=20).read()
        deadline = time.monotonic() + 20
        while threading.active_count() > others and time.monotonic() < deadline:
            time.sleep(0.01)
        running.shutdown()
    assert capfd.readouterr().err == ""


@pytest.fixture
def browser() -> Iterator[Any]:
    if not (shutil.which("chromium") and shutil.which("chromedriver")):
        pytest.skip("needs chromium and chromedriver (apt-get install chromium chromium-driver)")
    webdriver = pytest.importorskip("selenium.webdriver")
    options = webdriver.ChromeOptions()
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-dev-shm-usage",
        "--window-size=1280,900",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(
        options, webdriver.ChromeService(executable_path=shutil.which("chromedriver"))
    )
    driver.set_page_load_timeout(60)
    driver.set_script_timeout(30)
    yield driver
    driver.quit()


def open_page(driver: Any, folders: list[Path], out: Path, fragment: str = "") -> None:
    from selenium.webdriver.support.wait import WebDriverWait

    out.write_text(render_page(folders), encoding="utf-8")
    driver.get(f"file://{out}{fragment}")
    WebDriverWait(driver, 30).until(lambda d: d.find_elements("css selector", ".verdict"))


def test_a_reader_finds_a_step_and_who_else_stood_there(browser: Any, tmp_path: Path):
    from selenium.webdriver.common.keys import Keys

    open_page(browser, [write_run(tmp_path / "run")], tmp_path / "page.html", "#a1.0.0.1")
    text = browser.find_element("id", "step").text
    assert "Episode 1, step 2: go 1 a key" in text
    assert (
        "Its episode was won; 1 of the 2 episodes of this task were won. Episode advantage: +1.00."
        in text
    )
    assert "2 steps of these episodes were taken from this same state" in text
    assert (
        "on average 0.50. Step advantage: −0.50." in text
    )  # -0.5 here and 1.5 in the other episode
    assert "Together +0.50: the update makes this response more likely." in text
    positions = [
        cell.get_attribute("data-at")
        for cell in browser.find_elements("css selector", ".cell.same")
    ]
    assert positions == ["0.0.1", "0.1.1"]
    assert (
        browser.find_element("css selector", "#step tbody").text
        == "go 1 a key 1.22.2 1 of 2 0.50 +0.50"
    )
    browser.switch_to.active_element.send_keys(Keys.TAB)
    browser.find_element("css selector", ".cell.chosen").send_keys(Keys.ARROW_DOWN)
    browser.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
    assert "Episode 2, step 3" in browser.find_element("id", "step").text
    assert browser.current_url.endswith("#a1.0.1.2")
    browser.find_element("id", "query").send_keys("task 0")
    assert len(browser.find_elements("css selector", "#list button")) == 1
    assert not [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]


def test_summaries_are_named_and_are_no_steps(browser: Any, tmp_path: Path):
    folder = write_run(tmp_path / "run")
    (path,) = (folder / "rollouts").iterdir()
    rollouts = read_rollouts(path)
    episodes = []
    for episode in rollouts.episodes:
        first, second, third = episode.steps
        steps = (first, replace(second, is_summary=True), third)
        episodes.append(replace(episode, steps=steps))
    write_rollouts(path, replace(rollouts, episodes=tuple(episodes)))
    open_page(browser, [folder], tmp_path / "page.html", "#a1.0.0.1")
    text = browser.find_element("id", "step").text
    assert "Episode 1, summary before step 2: go 1 a key" in text
    assert "2 summaries of these episodes were written in this same state" in text
    assert "What the agent saw next" in text
    cells = browser.find_elements("css selector", ".cell .action")
    assert "summary: go 1 a key" in [cell.get_attribute("textContent") for cell in cells]
    browser.find_element("css selector", ".cell.chosen").send_keys("\ue014")  # arrow right
    assert "Episode 1, step 2: go 2 a key" in browser.find_element("id", "step").text
    assert "1.22.2" in browser.find_element("css selector", "#step tbody").text


@pytest.mark.parametrize(
    ("advantage", "judged"),
    [
        (0.25, "has the wrong sign"),
        pytest.param(-0.25, "has the right sign", marks=pytest.mark.slow),
        (0.15, "not clearly different from 0"),
    ],
)
def test_a_measured_step_is_judged(browser: Any, tmp_path: Path, advantage: float, judged: str):
    open_page(
        browser,
        [measured_run(tmp_path / "run", advantage=advantage)],
        tmp_path / "page.html",
        "#a1.0.0.2",
    )
    text = browser.find_element("css selector", ".verdict").text
    assert judged in text  # the estimate is 1.0 - 1.5
    assert "it wasted 2 actions" in text
    cell = [span.text for span in browser.find_elements("css selector", ".cell.chosen span")]
    assert cell[1:3] == ["+1.0", "−1.5"]
    assert cell[3][0] == "+−"[advantage < 0]


def test_a_picture_stands_beside_what_the_agent_read_and_what_its_action_changed(
    browser: Any, tmp_path: Path
):
    from selenium.webdriver.common.keys import Keys

    open_page(
        browser, [write_run(tmp_path / "run", pictures=seen())], tmp_path / "page.html", "#a1.0.1.0"
    )
    script = """return [...document.querySelectorAll("#step .seen figure")].map(figure =>
        [figure.querySelector("img").naturalWidth, figure.querySelector("img").alt, figure.innerText])"""
    caption = "after it: go 0 a key"
    state = "The anchor state: you see a key"
    assert browser.execute_script(script) == [
        [56, f"before the action. {state}", "before the action"],
        [560, f"{caption}. {state}", caption],
        [56, f"{caption}. {state}", caption],
    ]
    assert browser.find_element("css selector", "#step .seen pre").text == "you see a key"
    chosen = browser.find_element("css selector", ".cell.chosen")
    assert len(chosen.find_elements("css selector", "img")) == 1
    chosen.send_keys(Keys.ARROW_RIGHT)
    assert [width for width, _, _ in browser.execute_script(script)] == [
        560,
        56,
    ]  # the next step has no picture
    browser.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
    assert browser.execute_script(script) == []


def test_the_head_names_the_machine(browser: Any, tmp_path: Path):
    run = write_run(tmp_path / "run")
    (run / "machine.json").write_text(json.dumps({"starts": [{"done": 0, "cpu": "EPYC"}]}))
    open_page(browser, [run], tmp_path / "page.html")
    assert browser.find_element("id", "head").text.endswith(". Machine: EPYC")


def test_two_runs_stand_side_by_side(browser: Any, tmp_path: Path):
    runs = [write_run(tmp_path / name) for name in ("one", "two")]
    open_page(browser, runs, tmp_path / "page.html")
    titles = [heading.text for heading in browser.find_elements("css selector", ".two h3")]
    assert titles == ["A: iteration 3", "B: iteration 3"]
    assert len(browser.find_elements("css selector", "polyline.run1")) == 2


def test_an_open_page_follows_its_run(browser: Any, tmp_path: Path):
    from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException
    from selenium.webdriver.support.wait import WebDriverWait

    run = write_run(tmp_path / "run")
    with make_server([run], 0) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        browser.get(f"http://127.0.0.1:{running.server_address[1]}/#a1.0.0.1")
        WebDriverWait(browser, 30).until(
            lambda d: "to 75.0%" in d.find_element("id", "curves").text
        )
        time.sleep(6)  # it asks every five seconds, and has to have asked once
        with (run / "metrics.jsonl").open("a") as file:
            file.write('{"step": 4, "episode/success_rate": 0.875}\n')
        changed = (NoSuchElementException, StaleElementReferenceException)
        wait = WebDriverWait(browser, 30, ignored_exceptions=changed)
        wait.until(lambda d: "to 87.5%" in d.find_element("id", "curves").text)
        wait.until(
            lambda d: "Episode 1, step 2" in d.find_element("id", "step").text
        )  # where the reader was
        running.shutdown()


def test_hostile_texts_are_shown_and_do_nothing(browser: Any, tmp_path: Path):
    open_page(browser, [write_run(tmp_path / "run", text=HOSTILE)], tmp_path / "page.html")
    assert browser.execute_script("return window.hit") is None
    assert browser.execute_script("return document.images.length") == 0
    assert 'onerror="window.hit=1"' in browser.find_element("css selector", "#step pre").text


@pytest.mark.parametrize("width", [360, pytest.param(1280, marks=pytest.mark.slow)])
def test_nothing_scrolls_sideways(browser: Any, tmp_path: Path, width: int):
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500},
    )
    run = write_run(tmp_path / "run", text="x" * 300, steps=30, pictures=seen() * 10)
    open_page(browser, [run], tmp_path / "page.html")
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
