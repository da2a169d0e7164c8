"""Serves the page of a run in progress on loopback; a change of the run renders it anew."""

import http.server
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gigpo_jax.core.errors import InputError
from gigpo_jax.core.web_server import host_error
from gigpo_jax.run.workdir_names import METRICS
from gigpo_jax.tools.inspect.data import list_rollouts
from gigpo_jax.tools.inspect.page import render_page

ADDRESS = "127.0.0.1"


class _PageServer(http.server.ThreadingHTTPServer):
    """A server without tracebacks of readers who went away."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def describe_version(folders: Sequence[Path]) -> str:
    """A text that changes with logged iterations and saved rollouts."""
    words = []
    for folder in folders:
        metrics = folder / METRICS
        # The file only grows, so its size is a version and nothing need be read.
        words.append(str(metrics.stat().st_size if metrics.exists() else 0))
        words += [path.name for path in list_rollouts(folder)[:1]]
    return " ".join(words)


def make_server(folders: Sequence[Path], port: int) -> http.server.ThreadingHTTPServer:
    """Makes a server on 127.0.0.1 with the page at `/` and its version at `/version`.

    Args:
      folders: Workdirs.
      port: Port; 0 takes any free one.

    Raises:
      InputError: The port is taken.
    """
    pages: dict[str, str] = {}  # the newest version only

    class Handler(http.server.BaseHTTPRequestHandler):
        # Seconds for a request to arrive: a client that sends nothing frees its thread again.
        timeout = 30

        def do_GET(self) -> None:
            # A page of another site could reach loopback through a name of its own (DNS rebinding).
            error = host_error(self.headers.get("Host"), ADDRESS)
            if error:
                self._answer(400, "text/plain", error)
                return
            try:
                version = describe_version(folders)
                if self.path == "/version":
                    self._answer(200, "text/plain", version)
                elif self.path != "/":
                    self._answer(404, "text/plain", "there are / and /version")
                else:
                    # Rendering reads all files of the run; between two iterations all requests get
                    # one page.
                    page = pages.get(version)
                    if page is None:
                        page = render_page(folders, live=True)
                        # One version at a time, as a page may have many megabytes.
                        pages.clear()
                        pages[version] = page
                    self._answer(200, "text/html", page)
            # The run may be replaced or removed while the page is open: the server goes on.
            except InputError as error:
                self._answer(503, "text/plain", str(error))

        def _answer(self, status: int, content_type: str, text: str) -> None:
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", f"{content_type}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Logs nothing: an open page asks every five seconds."""

    try:
        return _PageServer((ADDRESS, port), Handler)
    except OSError as error:
        raise InputError(
            f"{error.strerror}", key="--port", value=port, fix="choose another, or 0 for any"
        ) from error
