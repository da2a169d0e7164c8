"""A small stand-in for the Hugging Face Hub: the calls that make, fill, list and read a model, over
real HTTP.
"""

import base64
import hashlib
import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

API = "/api/models/"


class Hub(http.server.ThreadingHTTPServer):
    """Attributes:
    models: name -> path -> content.
    refused: what the log has of requests that are not known here.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.models: dict[str, dict[str, bytes]] = {}
        self.refused: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def commit(self, name: str) -> str:
        """A commit's id: the hash of the content."""
        files = sorted(
            (path, hashlib.sha256(content).hexdigest())
            for path, content in self.models[name].items()
        )
        return hashlib.sha1(json.dumps(files).encode()).hexdigest()


@contextmanager
def serving() -> Iterator[Hub]:
    """Runs it in a thread."""
    with Hub() as hub:
        threading.Thread(target=hub.serve_forever, daemon=True).start()
        yield hub
        hub.shutdown()


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None: ...

    def do_POST(self) -> None:
        path = urlsplit(self.path).path
        body = self.rfile.read(int(self.headers["Content-Length"]))
        lines = [json.loads(line) for line in body.splitlines()]
        if self.headers["Authorization"] != "Bearer secret":
            self._answer({"error": "Invalid credentials"}, 401)
        elif path == "/api/repos/create":
            name = f"{lines[0]['organization']}/{lines[0]['name']}"
            self.server.models.setdefault(name, {})
            self._answer({"url": f"{self.server.url}/{name}"})
        elif path.endswith("/preupload/main"):
            files = [{"path": file["path"], "uploadMode": "regular"} for file in lines[0]["files"]]
            self._answer({"files": [file | {"shouldIgnore": False} for file in files]})
        elif path.endswith("/commit/main"):
            name = path.removeprefix(API).removesuffix("/commit/main")
            for line in lines:
                if line["key"] == "file":
                    self.server.models[name][line["value"]["path"]] = base64.b64decode(
                        line["value"]["content"]
                    )
                elif line["key"] == "deletedFile":
                    del self.server.models[name][line["value"]["path"]]
            self._answer(
                {"commitUrl": f"{self.server.url}/{name}", "commitOid": self.server.commit(name)}
            )
        else:
            self._unknown()

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        name = "/".join(path.removeprefix(API).strip("/").split("/")[:2])
        files = self.server.models.get(name)
        if files is None:
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif path.startswith(f"{API}{name}/tree/"):
            self._answer(
                [
                    {"type": "file", "path": p, "size": len(c), "oid": _oid(c)}
                    for p, c in files.items()
                ]
            )
        elif path in (f"{API}{name}", f"{API}{name}/revision/main"):
            listing = [{"rfilename": file} for file in files]
            self._answer({"id": name, "sha": self.server.commit(name), "siblings": listing})
        elif path.startswith(f"/{name}/resolve/"):
            self._file(self.server.commit(name), files[path.split("/", 5)[5]])
        else:
            self._unknown()

    do_HEAD = do_GET

    def _file(self, commit: str, content: bytes) -> None:
        self.send_response(200)
        self.send_header("X-Repo-Commit", commit)
        self.send_header("ETag", f'"{_oid(content)}"')
        self._send(content)

    def _answer(self, value: object, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self._send(json.dumps(value).encode())

    def _send(self, content: bytes) -> None:
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _unknown(self) -> None:
        self.server.refused.append(f"{self.command} {self.path}")
        self._answer({"error": "unknown here"}, 501)


def _oid(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
