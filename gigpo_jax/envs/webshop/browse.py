"""The shop as a web page on loopback: play an episode by hand, and see the agent's observations.

All text of the catalogue and of the visitor is escaped. Needs Flask: pip install "gigpo_jax[web]".
"""

import secrets
import sys
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any

from gigpo_jax.envs.webshop.catalogue.catalogue import Catalogue, open_catalogue
from gigpo_jax.envs.webshop.engine import pages
from gigpo_jax.envs.webshop.engine.session import Page, Session
from gigpo_jax.errors import InputError

CONNECTION_S = 60.0  # how long a connection may be idle, s
_COOKIE = "webshop"
_VISITORS = 64  # sessions kept; the least recently used one is dropped
_POLICY = "default-src 'none'; style-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"


class Visit:
    """One visitor's episode; `log` has the actions so far, with their rewards."""

    def __init__(self, catalogue: Catalogue) -> None:
        self.session = Session(catalogue)
        self.open(0)

    def open(self, goal: int) -> None:
        self.goal = goal
        self.page: Page = self.session.reset(goal)
        self.log: list[tuple[str, float]] = []

    def act(self, action: str) -> None:
        self.page = self.session.step(action)
        self.log.append((action, self.page.reward))


def view(visit: Visit) -> dict[str, Any]:
    """The content of the page, as plain values; the template escapes them."""
    session = visit.session
    buttons, body = [], []
    cards: list[dict[str, Any]] = []
    options: list[dict[str, Any]] = []
    for kind, text in pages.visible(session.nodes()):
        if kind == "button":
            buttons.append(text)
        elif kind == "product":
            cards.append({"asin": text, "lines": []})
        elif kind == "label":
            options[-1]["values"].append(text)
        elif cards:
            cards[-1]["lines"].append(text)
        else:
            body.append(text)
            options.append({"name": text, "values": []})
    options = [option for option in options if option["values"]]
    named = {option["name"] for option in options}
    score = session.score
    return {
        "place": session.place,
        "goal": visit.goal,
        "last_goal": session.catalogue.goal_count - 1,
        "task": session.goal.instruction,
        "buttons": [b for b in buttons if b not in (pages.BUY, pages.SEARCH)],
        "can_buy": pages.BUY in buttons,
        "cards": cards,
        "options": options,
        "chosen": session.options,
        "body": [text for text in body if text not in named and text.strip(": ") != "Instruction"][1:],
        "product": session.product,
        "done": session.place == "done",
        "score": score,
        "wanted": session.goal,
        "text": visit.page.text,
        "available": visit.page.available,
        "log": visit.log,
    }


def make_app(catalogue: Catalogue) -> Any:
    """The web application (a `flask.Flask`)."""
    try:
        import flask
    except ImportError as err:
        raise InputError('browse: Flask is not installed; pip install "gigpo_jax[web]"') from err
    app = flask.Flask("gigpo_jax.envs.webshop", root_path=str(Path(__file__).parent))
    app.config.update(MAX_CONTENT_LENGTH=1 << 20, TRUSTED_HOSTS=["127.0.0.1", "localhost", "[::1]"])
    visits: OrderedDict[str, Visit] = OrderedDict()
    lock = threading.Lock()  # protects visits and the catalogue: each connection has a thread

    def visit() -> tuple[str, Visit]:
        key = flask.request.cookies.get(_COOKIE, "")
        if key not in visits:
            key = secrets.token_urlsafe(16)
            visits[key] = Visit(catalogue)
            if len(visits) > _VISITORS:
                visits.popitem(last=False)
        visits.move_to_end(key)
        return key, visits[key]

    def answer(response: Any, key: str) -> Any:
        response.set_cookie(_COOKIE, key, httponly=True, samesite="Strict")
        response.headers["Content-Security-Policy"] = _POLICY
        response.headers["X-Content-Type-Options"] = "nosniff"
        return response

    @app.get("/")
    def show() -> Any:
        with lock:
            key, current = visit()
            shown = view(current)
        return answer(flask.make_response(flask.render_template("shop.html", **shown)), key)

    @app.post("/act")
    def act() -> Any:
        form = flask.request.form
        action = f"search[{form['search']}]" if "search" in form else f"click[{form.get('click', '')}]"
        with lock:
            key, current = visit()
            current.act(action)
        return answer(flask.redirect("/", code=303), key)

    @app.post("/goal")
    def goal() -> Any:
        text = flask.request.form.get("goal", "")
        with lock:
            key, current = visit()
            if text.isdecimal() and len(text) < 10 and int(text) < catalogue.goal_count:
                current.open(int(text))
        return answer(flask.redirect("/", code=303), key)

    return app


def make_server(catalogue: Catalogue, port: int) -> Any:
    """The page's server on loopback (of werkzeug), with a thread and a time limit for each connection."""
    app = make_app(catalogue)
    from werkzeug import serving

    class Handler(serving.WSGIRequestHandler):
        timeout = CONNECTION_S

    try:
        return serving.make_server("127.0.0.1", port, app, threaded=True, request_handler=Handler)
    except (OSError, OverflowError, SystemExit) as err:
        raise InputError(f"--port {port}: cannot listen there ({err}); name another one") from err


def serve(folder: Path, port: int, *, goals: str, variant: str | None) -> None:
    """Serves the page until Ctrl-C."""
    server = make_server(open_catalogue(folder, goals=goals, variant=variant), port)
    sys.stdout.write(f"the shop is open at http://127.0.0.1:{server.server_port} (Ctrl-C closes it)\n")
    sys.stdout.flush()
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        server.server_close()
