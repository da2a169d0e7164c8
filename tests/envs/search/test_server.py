"""The server's protocol, over real sockets."""

import http.client
import json
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("aiohttp")

from gigpo_jax.env_bridge.types import EnvError
from gigpo_jax.envs.command_line import main
from gigpo_jax.envs.search.retrieval import service as module
from gigpo_jax.envs.search.retrieval.bm25_index import Bm25Index, open_index
from gigpo_jax.envs.search.retrieval.client import RetrieverClient
from gigpo_jax.envs.search.retrieval.retriever import Document, Hit
from tests.envs.search.serving import serving

QUERIES = ["who founded the candles guild", "river", "zzzz", "", "Alda born \u2603 in", "\x00"]


@pytest.fixture(scope="module")
def index(world: Path) -> Bm25Index:
    return open_index(world / "index")


@pytest.fixture(scope="module")
def url(index: Bm25Index) -> Iterator[str]:
    with serving(index, threads=4) as address:
        yield address


def post(url: str, body: Any, **headers: str) -> tuple[int, Any]:
    headers = {"Content-Type": "application/json"} | headers
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(
            urllib.request.Request(f"{url}/retrieve", data, headers), timeout=30
        ) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as err:
        return err.code, json.load(err)


def test_the_client_gets_what_the_index_gives(url: str, index: Bm25Index) -> None:
    client = RetrieverClient(url)
    for topk in (1, 3, 50):
        assert client.search(QUERIES, topk) == index.search(QUERIES, topk)
    client.close()
    assert client.search(QUERIES, 2) == index.search(QUERIES, 2)
    assert client.search([], 3) == []
    client.close()


def test_both_forms_of_a_request(url: str, index: Bm25Index) -> None:
    hit = index.search(["river"], 3)[0][0]
    document = {"id": hit.document.id, "contents": hit.document.contents}
    status, answer = post(url, {"queries": ["river", "zzzz"], "topk": 1, "return_scores": True})
    assert (status, answer) == (200, {"result": [[{"document": document, "score": hit.score}], []]})
    assert post(url, {"query": "river", "topk": 1, "return_scores": True})[1] == {
        "result": [[{"document": document, "score": hit.score}]]
    }
    assert post(url, {"query": "river", "topk": 1}) == (200, {"result": [[document]]})
    assert len(post(url, {"queries": ["river"], "topk": None})[1]["result"][0]) == 3
    assert post(url, {"queries": []}) == (200, {"result": []})


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"<html>", 400),
        (b'{"query": "\xff"}', 400),
        (b"[" * 50_000, 400),
        ([], 400),
        ({}, 400),
        ({"queries": "x" * 100_000, "topk": 1}, 200),
        ({"queries": None, "query": "x"}, 200),
        ({"queries": [1]}, 400),
        ({"queries": ["a"] * 5000}, 400),
        ({"query": "a", "topk": 0}, 400),
        ({"query": "a", "topk": "3"}, 400),
        ({"query": "a", "topk": True}, 400),
        ({"query": "a", "topk": 1e9}, 400),
        ({"query": "a", "return_scores": "false"}, 400),
        (b'{"query": "' + b"x" * (17 << 20) + b'"}', 413),
    ],
)
def test_bad_requests_are_refused_with_a_reason_and_the_server_lives_on(
    url: str, body: Any, status: int
) -> None:
    try:
        assert post(url, body)[0] == status
    except (ConnectionError, urllib.error.URLError, json.JSONDecodeError):
        assert status == 413  # refused while the body was still being sent, or in plain words
    with urllib.request.urlopen(f"{url}/health", timeout=30) as answer:
        assert json.load(answer)["status"] == "ok"


class Slow:
    """A retriever whose searches take a while, and which counts how many run at once."""

    def __init__(self) -> None:
        self.now = self.most = 0
        self._lock = threading.Lock()

    def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)
        time.sleep(0.2)
        with self._lock:
            self.now -= 1
        if "fail" in queries:
            raise EnvError("the disk is gone")
        return [[Hit(Document("1", query), 1.0)] for query in queries]

    def close(self) -> None:
        pass


def test_requests_do_not_wait_for_one_another() -> None:
    slow = Slow()
    with serving(slow, threads=8) as url:
        threads = [
            threading.Thread(target=lambda n=n: RetrieverClient(url).search([f"a{n}", f"b{n}"], 1))
            for n in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert slow.most == 8  # four requests of two queries, all at the same time
        with pytest.raises(EnvError, match="HTTP status 500"):
            RetrieverClient(url, limit_s=2.0).search(["fail"], 1)


def test_too_much_work_is_refused_and_slow_work_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def waiting(url: str) -> int:
        with urllib.request.urlopen(f"{url}/health", timeout=30) as answer:
            return json.load(answer)["waiting"]

    monkeypatch.setattr(module, "MAX_WAITING", 3)
    with serving(Slow(), threads=4) as url:
        status, answer = post(url, {"queries": ["a"] * 4})
        assert (status, answer) == (503, {"error": "0 queries are waiting; ask again later"})
        assert post(url, {"queries": ["a"] * 3})[0] == 200
        assert waiting(url) == 0
        assert post(url, {"queries": ["a"] * 3})[0] == 200
        monkeypatch.setattr(module, "TIMEOUT_S", 0.05)
        assert post(url, {"queries": ["a"]}) == (504, {"error": "not done within 0.05 s"})
        assert waiting(url) == 0


def test_a_request_that_never_comes_is_given_up(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TIMEOUT_S", 0.05)
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=30)
    connection.putrequest("POST", "/retrieve")
    connection.putheader("Content-Type", "application/json")
    connection.putheader("Content-Length", "1000")
    connection.endheaders(b'{"query": ')
    answer = connection.getresponse()
    assert (answer.status, json.load(answer)) == (
        408,
        {"error": "the request was not complete within 0.05 s"},
    )
    connection.close()


def test_pages_of_other_sites_get_nothing(url: str) -> None:
    status, answer = post(url, {"queries": ["a"]}, **{"Content-Type": "text/plain"})
    assert (status, answer) == (415, {"error": "Content-Type: must be application/json"})
    status, answer = post(url, {"queries": ["a"]}, Host="attacker.example")
    assert status == 400
    assert "attacker.example" in answer["error"]


def raw(url: str, data: bytes) -> bytes:
    """The first bytes of the answer to raw data; b"" if the server closes the connection."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(data)
        return connection.recv(100)


def test_half_of_a_head_is_given_up(monkeypatch: pytest.MonkeyPatch, index: Bm25Index) -> None:
    monkeypatch.setattr(module, "TIMEOUT_S", 0.5)
    with serving(index) as url:
        assert raw(url, b"") == b""
        assert raw(url, b"POST /retr") == b""
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=30) as connection:
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert connection.recv(1000).startswith(b"HTTP/1.1 200")
            connection.sendall(b"GET /hea")  # a second request of the same connection
            while connection.recv(1000):
                pass


@pytest.mark.parametrize(
    ("head", "body"),
    [
        (b"Content-Encoding: gzip\r\n", b"junkjunkjunk"),
        (b"Content-Encoding: deflate\r\n", b"\xff\xfe\xfd" * 9),
        (b"Content-Encoding: br\r\n", b"junk"),
        (b"X: " + b"y" * 20_000 + b"\r\n", b"{}"),
        (b"Content-Length: -5\r\n", b""),
        (b"Transfer-Encoding: chunked\r\n", b"zz\r\n"),
    ],
)
def test_broken_requests_are_answered_with_400_and_without_a_traceback(
    url: str, head: bytes, body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    length = (
        b""
        if head.startswith((b"Content-Length", b"Transfer"))
        else b"Content-Length: %d\r\n" % len(body)
    )
    answer = raw(
        url,
        b"POST /retrieve HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        + head
        + length
        + b"\r\n"
        + body,
    )
    assert answer.split()[1] == b"400"
    raw(
        url, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    )  # what is left of the first is done by now
    assert not caplog.records


def test_long_queries_are_cut_before_they_are_searched() -> None:
    with serving(Slow()) as url:
        answer = post(url, {"query": "x" * 100_000})[1]
    assert answer["result"][0][0]["contents"] == "x" * 2000


def test_the_command_serves_on_loopback_and_ends_on_sigterm(tmp_path: Path) -> None:
    corpus = tmp_path / "c.jsonl"
    corpus.write_text('{"id": 7, "contents": "\\"T\\"\\nalpha beta"}\n')
    command = [
        sys.executable,
        "-m",
        "gigpo_jax.envs.search.server",
        "--corpus",
        str(corpus),
        "--port",
        "0",
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            assert url.startswith("http://127.0.0.1:")
            assert RetrieverClient(url).search(["beta"], 3)[0][0].document == Document(
                "7", '"T"\nalpha beta'
            )
            connection = http.client.HTTPConnection(
                "127.0.0.1", int(url.split(":")[2].split("/")[0]), timeout=30
            )
            connection.request("GET", "/health")
            assert json.load(connection.getresponse())["passages"] == 1
            connection.close()
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
        finally:
            process.kill()


def test_the_command_says_what_is_wrong(tmp_path: Path) -> None:
    assert main(["search", "serve", "--corpus", str(tmp_path / "none.jsonl"), "--port", "0"]) == 2
    (tmp_path / "one.jsonl").write_text('{"id": 1, "contents": "a"}')
    assert (
        main(
            [
                "search",
                "serve",
                "--corpus",
                str(tmp_path / "one.jsonl"),
                "--port",
                "0",
                "--threads",
                "-1",
            ]
        )
        == 2
    )
