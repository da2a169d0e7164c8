"""Serves the page of a run in progress on loopback; it is made anew when the run has written something."""

import http.server
from collections.abc import Sequence
from pathlib import Path

from gigpo_jax.errors import InputError
from gigpo_jax.inspect.data import newest_rollouts
from gigpo_jax.inspect.page import render


def version(folders: Sequence[Path]) -> str:
    """Changes when a run has logged an iteration or saved rollouts."""
    parts = []
    for folder in folders:
        metrics = folder / "metrics.jsonl"
        parts += [
            str(metrics.stat().st_size if metrics.exists() else 0),
            *(p.name for p in newest_rollouts(folder)[:1]),
        ]
    return " ".join(parts)


def server(folders: Sequence[Path], port: int) -> http.server.ThreadingHTTPServer:
    """A server of `/` (the page) and `/version` on 127.0.0.1; port 0 takes any that is free.

    Raises:
      InputError: the port is taken.
    """
    made: dict[str, str] = {}

    class Handler(http.server.BaseHTTPRequestHandler):
        timeout = 30  # seconds for a request to arrive; a client that sends nothing holds no thread for longer

        def do_GET(self) -> None:
            try:
                now = version(folders)
                if self.path == "/version":
                    return self.answer(200, "text/plain", now)
                if self.path != "/":
                    return self.answer(404, "text/plain", "there are / and /version")
                if now not in made:
                    page = render(folders, live=True)
                    made.clear()
                    made[now] = page
                return self.answer(200, "text/html", made[now])
            except InputError as error:
                return self.answer(503, "text/plain", str(error))

        def answer(self, status: int, kind: str, text: str) -> None:
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            del format, args

    try:
        return http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
    except OSError as error:
        raise InputError(f"--port={port}: {error.strerror}; choose another, or 0 for any") from error
