"""The page that a person looks at: a purchase by clicking, the agent's text beside it, and
everything escaped.
"""

import json
import shutil
import socket
import threading
import urllib.request
from html import unescape

import pytest

from gigpo_jax.envs.webshop import Session, open_catalogue

flask = pytest.importorskip("flask", reason="Flask is not installed (the extra `web`)")
from gigpo_jax.envs.webshop import browse  # noqa: E402
from gigpo_jax.envs.webshop.browse import make_page_server, make_shop_app  # noqa: E402

ATTACK = "<script>document.title='pwned'</script>\"><img src=x onerror=alert(1)>"


@pytest.fixture
def attacked(own_copy):
    """A catalogue in which every text of every product is an attack."""
    path = own_copy / "items_shuffle_1000.json"
    products = json.loads(path.read_text())
    for product in products:
        product["name"] += ATTACK
        product["full_description"] += ATTACK
        product["small_description"] = [ATTACK]
        product["customization_options"] = {ATTACK: [{"value": ATTACK}, {"value": "plain"}]}
    path.write_text(json.dumps(products))
    return open_catalogue(own_copy, goals="human")


def test_the_page_and_the_agent_see_the_same_state_and_nothing_is_markup(attacked):
    client = make_shop_app(attacked).test_client()
    session = Session(attacked)
    page = session.reset(0)
    searched = f"pillow {ATTACK}"
    for action in (
        "",
        f"search[{searched}]",
        "first",
        "click[description]",
        "click[< prev]",
        "click[plain]",
        "click[buy now]",
    ):
        if action == "first":
            action = f"click[{page.available['clickables'][2]}]"
        if action:
            page = session.step(action)
            name, _, rest = action.partition("[")
            assert client.post("/act", data={name: rest[:-1]}).status_code == 303
        html = client.get("/").get_data(as_text=True)
        assert unescape(html.split('id="agent-text">')[1].split("</pre>")[0]) == page.text
        assert "<script" not in html
        assert "<img" not in html
    assert page.done


def test_only_loopback_names_are_answered(attacked):
    client = make_shop_app(attacked).test_client()
    assert client.get("/", headers={"Host": "evil.example"}).status_code == 400
    assert "default-src 'none'" in client.get("/").headers["Content-Security-Policy"]


def test_nonsense_does_nothing(attacked):
    client = make_shop_app(attacked).test_client()
    for data in ({"goal": "-1"}, {"goal": "99999999"}, {"goal": "x" * 1000}, {}):
        assert client.post("/goal", data=data).status_code == 303
    for data in ({"click": "no such thing"}, {"search": ""}, {"search": "]["}, {}):
        assert client.post("/act", data=data).status_code == 303
    assert client.get("/").status_code == 200


def test_an_idle_connection_holds_up_nobody_and_is_closed_in_the_end(reference, monkeypatch):
    monkeypatch.setattr(browse, "CONNECTION_S", 4.0)
    server = make_page_server(open_catalogue(reference), 0)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    address = ("127.0.0.1", server.server_port)
    try:
        with (
            socket.create_connection(address, timeout=30) as idle,
            socket.create_connection(address, timeout=30) as half,
        ):
            half.sendall(b"GET / HT")
            page = urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/", timeout=30)
            assert page.status == 200
            idle.setblocking(False)
            with pytest.raises(BlockingIOError):  # the page did not wait for its end
                idle.recv(1)
            idle.settimeout(30)
            assert (idle.recv(1), half.recv(1)) == (b"", b"")
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout=10)


@pytest.mark.skipif(
    not (shutil.which("chromium") and shutil.which("chromedriver")),
    reason="needs chromium and chromedriver (apt-get install chromium chromium-driver)",
)
def test_a_purchase_by_clicking_in_a_browser(reference, tmp_path):
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    catalogue = open_catalogue(reference, goals="human", draw_seed=42)
    goal = catalogue.goal(19)
    assert goal.options == ("multicolor",)
    server = make_page_server(catalogue, 0)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    options = webdriver.ChromeOptions()
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-dev-shm-usage",
        "--window-size=1280,900",
    ):
        options.add_argument(argument)
    service = webdriver.ChromeService(executable_path=shutil.which("chromedriver"))
    try:
        driver = webdriver.Chrome(options=options, service=service)
        try:
            driver.set_page_load_timeout(60)
            _buy(driver, server.server_port, goal)
            (tmp_path / "done.png").write_bytes(driver.get_screenshot_as_png())
        finally:
            driver.quit()
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout=10)


def _buy(driver, port, goal):
    from selenium.common.exceptions import WebDriverException
    from selenium.webdriver.support.wait import WebDriverWait

    # While one page takes another's place the driver may know the nodes of neither.
    wait = WebDriverWait(driver, 30, ignored_exceptions=[WebDriverException])

    def find(css):
        return driver.find_element("css selector", css)

    def follow(element):
        driver.execute_script("window.left = true")
        element.click()
        wait.until(
            lambda d: d.execute_script("return !window.left && document.readyState === 'complete'")
        )

    def press(text):
        follow(
            next(
                button
                for button in driver.find_elements("css selector", "#shop button")
                if button.text == text
            )
        )

    driver.get(f"http://127.0.0.1:{port}/")
    find("#goal").clear()
    find("#goal").send_keys("19")
    follow(find(".goal button"))
    assert goal.instruction in find("#task").text
    find("#search").send_keys(goal.name)
    follow(find("#search-button"))
    assert find("#shop").get_attribute("data-place") == "results"
    follow(find("#product-1"))
    assert goal.name in find("h1").text
    press("Description")
    assert find("#shop").get_attribute("data-place") == "sub"
    press("< Prev")
    press("multicolor")
    assert find(".chosen").text == "multicolor"
    press("Buy Now")
    assert find("#score").get_attribute("data-score") == "1.0"
    assert find("#agent-text").text.startswith("Thank you for shopping with us!")
