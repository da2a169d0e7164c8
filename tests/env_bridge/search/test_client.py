"""The client against servers that misbehave in every way a server can."""

import json
import time

import pytest

pytest.importorskip("aiohttp")

from gigpo_jax.env_bridge.search import client as module
from gigpo_jax.env_bridge.search.client import RetrieverClient
from gigpo_jax.env_bridge.types import EnvError
from tests.env_bridge.search.serving import answering, http_answer

GOOD = http_answer(
    json.dumps({"result": [[{"document": {"id": "1", "contents": '"T"\ntext'}, "score": 0.5}]]}).encode()
)


@pytest.mark.parametrize(
    "trouble",
    [
        http_answer(b"busy", "500 Internal Server Error"),
        http_answer(b"busy", "502 Bad Gateway"),
        http_answer(b"", "503 Service Unavailable"),
        http_answer(b"", "504 Gateway Timeout"),
        b"",  # nothing at all
        b"\xff\xfe nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{",  # cut off
    ],
)
def test_what_may_pass_is_asked_again(monkeypatch: pytest.MonkeyPatch, trouble: bytes) -> None:
    monkeypatch.setattr(module, "FIRST_PAUSE_S", 0.01)
    with answering(lambda n: trouble if n < 2 else GOOD) as (url, requests):
        hits = RetrieverClient(url).search(["who"], 3)
    assert (hits[0][0].document.contents, hits[0][0].score) == ('"T"\ntext', 0.5)
    assert len(requests) == 3
    assert json.loads(requests[0]) == {"queries": ["who"], "topk": 3, "return_scores": True}


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (http_answer(b"<html><body>Welcome</body></html>"), "Welcome"),
        (http_answer(b""), "an empty answer"),
        (http_answer(b"{"), "JSONDecodeError"),
        (http_answer(b"\xff\xfe\xff"), "UnicodeDecodeError"),
        (http_answer(b"[]"), "TypeError"),
        (http_answer(b"{}"), "KeyError"),
        (http_answer(b'{"result": []}'), "no list of 1 results"),
        (http_answer(b'{"result": [[{"document": {"id": 1}}]]}'), "KeyError"),
        (http_answer(b'{"result": [[{"document": {"contents": 3}}]]}'), "contents is a int"),
        (http_answer(b'{"result": [[7]]}'), "AttributeError"),
        (http_answer(b'{"result": [[{"contents": "a", "score": "high"}]]}'), "ValueError"),
        (http_answer(b"no such page", "404 Not Found"), "HTTP status 404, 'no such page'"),
        (http_answer(b"", "302 Found"), "HTTP status 302"),
        (http_answer(b'{"error": "topk"}', "400 Bad Request"), "topk"),
    ],
)
def test_nonsense_aborts_at_once_in_one_line(answer: bytes, message: str) -> None:
    with answering(lambda n: answer) as (url, requests), pytest.raises(EnvError) as caught:
        RetrieverClient(url).search(["who"], 3)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert url in str(caught.value)
    assert len(requests) == 1


def test_documents_without_scores_are_read_too() -> None:
    body = http_answer(b'{"result": [[{"id": 5, "contents": "a"}]]}')
    with answering(lambda n: body) as (url, _):
        hit = RetrieverClient(url).search(["who"], 3)[0][0]
    assert (hit.document.id, hit.document.contents, hit.score) == ("5", "a", 0.0)


def test_a_server_that_stays_down_is_given_up_within_the_limit_and_then_quickly() -> None:
    with answering(lambda n: http_answer(b"", "503 Service Unavailable")) as (url, requests):
        client = RetrieverClient(url, limit_s=1.0)
        started = time.monotonic()
        with pytest.raises(EnvError, match=r"then gave up [(]HTTP status 503"):
            client.search(["who"], 3)
        assert 0.4 < time.monotonic() - started < 5
        asked = len(requests)
        assert 2 <= asked <= 3  # after pauses of 0.2 and 0.4 s; the next, of 0.8 s, would go past the limit
        with pytest.raises(EnvError, match="asked once"):
            client.search(["who"], 3)
        assert len(requests) == asked + 1
    with pytest.raises(EnvError, match="refused"):
        client.search(["who"], 3)


def test_it_comes_back_when_the_server_does() -> None:
    with answering(lambda n: GOOD if n else http_answer(b"", "500 x")) as (url, requests):
        client = RetrieverClient(url, limit_s=0.1)
        with pytest.raises(EnvError):
            client.search(["who"], 3)
        assert client.search(["who"], 3)[0][0].score == 0.5
        assert client.search(["who"], 3)[0][0].score == 0.5
        assert len(requests) == 3


def test_silence_is_not_waited_for_without_end() -> None:
    with answering(lambda n: None) as (url, _):
        started = time.monotonic()
        with pytest.raises(EnvError, match="no answer in time"):
            RetrieverClient(url, timeout_s=0.2, limit_s=0.8).search(["who"], 3)
        assert time.monotonic() - started < 10


def test_queries_of_100000_characters_and_lone_surrogates_are_sent_in_short() -> None:
    with answering(lambda n: GOOD) as (url, requests):
        client = RetrieverClient(url)
        client.search(["x" * 100_000], 3)
        client.search(["\ud800"], 3)
    assert len(requests[0]) < 2200
    assert json.loads(requests[1])["queries"] == ["?"]
