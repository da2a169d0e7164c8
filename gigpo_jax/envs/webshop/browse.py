"""The shop as a web page on loopback: play an episode by hand, and see the agent's observations.

All text of the catalogue and of the visitor is escaped. Needs Flask, which the extra `web` brings.
"""

import secrets
import sys
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any

from gigpo_jax.core.errors import InputError
from gigpo_jax.core.optional import optional_imports
from gigpo_jax.envs.webshop.catalogue.catalogue import Catalogue, open_catalogue
from gigpo_jax.envs.webshop.engine import pages
from gigpo_jax.envs.webshop.engine.session import Page, Session

CONNECTION_S = 60.0  # limit of an idle connection, s
_COOKIE = "webshop"
_VISITORS = 64  # number of sessions kept; the least recently used one is dropped
_POLICY = (
    "default-src 'none'; style-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'"
)


class Visit:
    """One visitor's episode, with a log of the actions so far and their rewards."""

    def __init__(self, catalogue: Catalogue) -> None:
        self.session = Session(catalogue)
        self.open_goal(0)

    def open_goal(self, goal: int) -> None:
        """Starts an episode with a goal."""
        self.goal = goal
        self.page: Page = self.session.reset(goal)
        self.log: list[tuple[str, float]] = []

    def act(self, action: str) -> None:
        self.page = self.session.step(action)
        self.log.append((action, self.page.reward))


class Visitors:
    """The visits by the key in the visitor's cookie, the least recently used one first.

    `lock` guards them and the catalogue: each connection has a thread.
    """

    def __init__(self, catalogue: Catalogue) -> None:
        self.lock = threading.Lock()
        self._catalogue = catalogue
        self._visits: OrderedDict[str, Visit] = OrderedDict()

    def find(self, key: str) -> tuple[str, Visit]:
        """Returns key and visit of a visitor; an unknown key begins a visit with a new key."""
        if key not in self._visits:
            key = secrets.token_urlsafe(16)
            self._visits[key] = Visit(self._catalogue)
            if len(self._visits) > _VISITORS:
                self._visits.popitem(last=False)
        self._visits.move_to_end(key)
        return key, self._visits[key]


def page_content(visit: Visit) -> dict[str, Any]:
    """Returns the page's content as plain values, which the template escapes."""
    session = visit.session
    buttons: list[str] = []
    body: list[str] = []
    cards: list[dict[str, Any]] = []  # of products
    options: list[dict[str, Any]] = []
    for kind, text in pages.visible_nodes(session.nodes()):
        if kind == "button":
            buttons.append(text)
        elif kind == "product":
            cards.append({"asin": text, "lines": []})
        elif kind == "label":
            options[-1]["values"].append(text)
        elif cards:
            cards[-1]["lines"].append(text)
        else:  # the name of an option if labels follow
            body.append(text)
            options.append({"name": text, "values": []})
    # Texts without labels behind them are no options.
    options = [option for option in options if option["values"]]
    option_names = {option["name"] for option in options}
    lines = []
    for text in body:
        if text not in option_names and text.strip(": ") != "Instruction":
            lines.append(text)
    return {
        "place": session.place,
        "goal": visit.goal,
        "last_goal": session.catalogue.goal_count - 1,
        "task": session.goal.instruction,
        "buttons": [text for text in buttons if text not in (pages.BUY, pages.SEARCH)],
        "can_buy": pages.BUY in buttons,
        "cards": cards,
        "options": options,
        "chosen": session.options,
        "body": lines[1:],  # without the task
        "product": session.product,
        "done": session.place == "done",
        "score": session.score,
        "target": session.goal,
        "text": visit.page.text,
        "available": visit.page.available,
        "log": visit.log,
    }


def make_shop_app(catalogue: Catalogue) -> Any:
    """The web application (a `flask.Flask`)."""
    with optional_imports("web", key="browse"):
        import flask
    app = flask.Flask("gigpo_jax.envs.webshop", root_path=str(Path(__file__).parent))
    # A page of another site could reach loopback through a name of its own (DNS rebinding); Flask
    # refuses hosts that are not listed.
    app.config.update(MAX_CONTENT_LENGTH=1 << 20, TRUSTED_HOSTS=["127.0.0.1", "localhost", "[::1]"])
    visitors = Visitors(catalogue)

    def find_visit() -> tuple[str, Visit]:
        return visitors.find(flask.request.cookies.get(_COOKIE, ""))

    def add_headers(response: Any, key: str) -> Any:
        # Strict: a form of another site is sent without the cookie and cannot act in this episode.
        response.set_cookie(_COOKIE, key, httponly=True, samesite="Strict")
        response.headers["Content-Security-Policy"] = _POLICY
        response.headers["X-Content-Type-Options"] = "nosniff"
        return response

    @app.get("/")
    def show_page() -> Any:
        with visitors.lock:
            key, visit = find_visit()
            content = page_content(visit)
        return add_headers(flask.make_response(flask.render_template("shop.html", **content)), key)

    @app.post("/act")
    def take_action() -> Any:
        form = flask.request.form
        if "search" in form:
            action = f"search[{form['search']}]"
        else:
            action = f"click[{form.get('click', '')}]"
        with visitors.lock:
            key, visit = find_visit()
            visit.act(action)
        return add_headers(flask.redirect("/", code=303), key)

    @app.post("/goal")
    def choose_goal() -> Any:
        text = flask.request.form.get("goal", "")
        with visitors.lock:
            key, visit = find_visit()
            # Bounded, as int() raises for texts of thousands of digits.
            if text.isdecimal() and len(text) < 10 and int(text) < catalogue.goal_count:
                visit.open_goal(int(text))
        return add_headers(flask.redirect("/", code=303), key)

    return app


def make_page_server(catalogue: Catalogue, port: int) -> Any:
    """The page's server on loopback (werkzeug); each connection has a thread and a time limit."""
    app = make_shop_app(catalogue)
    from werkzeug import serving

    class Handler(serving.WSGIRequestHandler):
        timeout = CONNECTION_S

    try:
        return serving.make_server("127.0.0.1", port, app, threaded=True, request_handler=Handler)
    except (OSError, OverflowError, SystemExit) as err:
        raise InputError(
            f"cannot listen there ({err})", key="--port", value=port, fix="name another one"
        ) from err


def serve_shop(folder: Path, port: int, *, goals: str, variant: str | None) -> None:
    """Serves the page until Ctrl-C."""
    server = make_page_server(open_catalogue(folder, goals=goals, variant=variant), port)
    sys.stdout.write(
        f"the shop is open at http://127.0.0.1:{server.server_port} (Ctrl-C closes it)\n"
    )
    sys.stdout.flush()
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        server.server_close()
