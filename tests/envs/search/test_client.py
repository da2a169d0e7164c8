"""The client against servers that misbehave in every way a server can."""

import json
import threading
import time
from collections.abc import Sequence

import pytest

pytest.importorskip("aiohttp")

from gigpo_jax.env_bridge.types import EnvError
from gigpo_jax.envs.search.retrieval import client as module
from gigpo_jax.envs.search.retrieval.client import RetrieverClient
from gigpo_jax.envs.search.retrieval.retriever import Document, Hit
from tests.envs.search.serving import answering, http_answer, serving
from tests.processes import patience

GOOD = http_answer(
    json.dumps(
        {"result": [[{"document": {"id": "1", "contents": '"T"\ntext'}, "score": 0.5}]]}
    ).encode()
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
        (
            http_answer(b'{"result": [[{"contents": "a", "score": ' + b"9" * 400 + b"}]]}"),
            "OverflowError",
        ),
        (http_answer(b"no such page", "404 Not Found"), "HTTP status 404, 'no such page'"),
        (http_answer(b"", "302 Found\r\nLocation: /elsewhere"), "HTTP status 302"),
        (http_answer(b'{"result": [[], ' + b" " * (2 << 20)), "its answer is larger than 1 MiB"),
        (http_answer(b'{"error": "topk"}', "400 Bad Request"), "topk"),
    ],
)
def test_nonsense_aborts_at_once_in_one_line(
    monkeypatch: pytest.MonkeyPatch, answer: bytes, message: str
) -> None:
    monkeypatch.setattr(module, "MAX_ANSWER_BYTES", 1 << 20)
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
        assert 0.4 < time.monotonic() - started < patience(5)
        asked = len(requests)
        assert (
            2 <= asked <= 3
        )  # after pauses of 0.2 and 0.4 s; the next, of 0.8 s, would go past the limit
        with pytest.raises(EnvError, match="asked once"):
            client.search(["who"], 3)
        assert len(requests) == asked + 1
    with pytest.raises(EnvError, match="refused"):
        client.search(["who"], 3)


def test_pauses_grow_no_further_than_to_the_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_PAUSE_S", 0.05)
    monkeypatch.setattr(module, "LONGEST_PAUSE_S", 0.1)
    with answering(lambda n: GOOD if n > 6 else http_answer(b"", "503 x")) as (url, requests):
        RetrieverClient(url, limit_s=3.0).search(
            ["who"], 3
        )  # 0.65 s of pauses; doubled ever on it would be 6.35 s
    assert len(requests) == 8


def test_a_silent_server_is_tried_only_shortly_once_it_is_known_to_be_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "SHORT_TRY_S", 0.1)
    with answering(lambda n: None) as (url, requests):
        client = RetrieverClient(url, timeout_s=3.0, limit_s=3.0)
        with pytest.raises(EnvError, match="no answer in time"):
            client.search(["who"], 3)
        started = time.monotonic()
        probe, *short_tries = [
            client.submit(["who"], topk) for topk in (1, 2, 3)
        ]  # batches of their own
        for short_try in short_tries:
            with pytest.raises(EnvError, match="no answer in time"):
                short_try.result(60)
        assert time.monotonic() - started < patience(2)
        assert not probe.done()  # one request at a time has the whole time-out
        with pytest.raises(EnvError, match="no answer in time"):
            probe.result(60)
        assert time.monotonic() - started > 2.5
        client.close()
    assert len(requests) == 4


def test_a_slow_server_is_found_to_be_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHORT_TRY_S", 0.1)

    broken = threading.Event()
    broken.set()

    def slowly(n: int) -> bytes:
        if broken.is_set():
            return http_answer(b"", "503 Service Unavailable")
        time.sleep(0.5)
        return GOOD

    with answering(slowly) as (url, _):
        client = RetrieverClient(url, limit_s=4.0)
        with pytest.raises(EnvError):
            client.search(["who"], 3)
        broken.clear()
        assert client.search(["who"], 3)[0][0].score == 0.5
        client.close()


def test_it_comes_back_when_the_server_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_PAUSE_S", 60.0)  # beyond the limit: one try
    with answering(lambda n: GOOD if n else http_answer(b"", "500 x")) as (url, requests):
        client = RetrieverClient(url, limit_s=30.0)
        with pytest.raises(EnvError):
            client.search(["who"], 3)
        assert client.search(["who"], 3)[0][0].score == 0.5
        assert client.search(["who"], 3)[0][0].score == 0.5
        assert len(requests) == 3


def test_once_it_is_back_it_is_asked_again_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_PAUSE_S", 0.01)
    busy = http_answer(b"", "503 x")
    down = threading.Event()
    down.set()
    with answering(lambda n: busy if down.is_set() or len(requests) == failing else GOOD) as (
        url,
        requests,
    ):
        failing = 0
        client = RetrieverClient(url, limit_s=2.0)
        with pytest.raises(EnvError, match="then gave up"):
            client.search(["who"], 3)
        down.clear()
        client.search(["who"], 3)
        failing = len(requests) + 1  # the next is refused, and the one after it is not
        client.search(["who"], 3)
        assert len(requests) == failing + 1
        client.close()


def test_a_connection_that_was_closed_is_replaced_at_once_but_not_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "FIRST_PAUSE_S", 60.0)  # beyond the limit
    with answering(lambda n: GOOD if n else b"") as (url, requests):
        RetrieverClient(url, limit_s=30.0).search(["who"], 3)
    with (
        answering(lambda n: b"") as (url, requests),
        pytest.raises(EnvError, match="asked 2 times"),
    ):
        RetrieverClient(url, limit_s=30.0).search(["who"], 3)
    assert len(requests) == 2


def test_silence_is_not_waited_for_without_end() -> None:
    with answering(lambda n: None) as (url, _):
        started = time.monotonic()
        with pytest.raises(EnvError, match="no answer in time"):
            RetrieverClient(url, timeout_s=0.2, limit_s=0.8).search(["who"], 3)
        assert time.monotonic() - started < patience(10)


def test_a_request_without_an_answer_is_sent_again_before_the_limit() -> None:
    with answering(lambda n: GOOD if n else None) as (url, requests):
        client = RetrieverClient(url, timeout_s=0.3, limit_s=30.0)
        started = time.monotonic()
        assert client.search(["who"], 3)[0][0].score == 0.5
        assert time.monotonic() - started < patience(15)
        client.close()
    assert len(requests) == 2


def test_queries_of_100000_characters_and_lone_surrogates_are_sent_in_short() -> None:
    with answering(lambda n: GOOD) as (url, requests):
        client = RetrieverClient(url)
        client.search(["x" * 100_000], 3)
        client.search(["\ud800"], 3)
    assert len(requests[0]) < 2200
    assert json.loads(requests[1])["queries"] == ["?"]


class Echo:
    """Finds the query itself, after a while, and notes how many searches run at once."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self.running = 0
        self.peak = 0

    def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        with self._lock:
            self.running += 1
            self.peak = max(self.peak, self.running)
        time.sleep(self._seconds)
        with self._lock:
            self.running -= 1
        return [[Hit(Document(str(topk), query), 1.0)] * topk for query in queries]

    def close(self) -> None:
        pass


def test_searches_that_wait_leave_together_and_each_gets_its_own() -> None:
    bodies: list[bytes] = []
    with serving(Echo(0.0), bodies) as url:
        client = RetrieverClient(url)
        futures = [client.submit([f"q{n}"], 1 + n % 2) for n in range(300)]
        results = [future.result(30) for future in futures]
        client.close()
    assert results == [
        [[Hit(Document(str(1 + n % 2), f"q{n}"), 1.0)] * (1 + n % 2)] for n in range(300)
    ]
    requests = [json.loads(body) for body in bodies]
    assert sorted(query for body in requests for query in body["queries"]) == sorted(
        f"q{n}" for n in range(300)
    )
    assert max(len(body["queries"]) for body in requests) <= module.BATCH

    bodies.clear()
    with serving(Echo(0.0), bodies) as url:
        client = RetrieverClient(url)
        assert len(client.search([f"q{n}" for n in range(150)], 1)) == 150
        client.close()
    assert [len(json.loads(body)["queries"]) for body in bodies] == [64, 64, 22]


def test_requests_are_on_their_way_at_the_same_time_but_not_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "BATCH", 1)
    echo = Echo(0.3)
    with serving(echo, threads=40) as url:
        client = RetrieverClient(url)
        client.search([f"q{n}" for n in range(2 * module.IN_FLIGHT)], 1)
        client.close()
    assert echo.peak == module.IN_FLIGHT


def test_a_query_that_is_refused_costs_no_other() -> None:
    refused = http_answer(b"one of them is odd", "400 Bad Request")
    with answering(lambda n: GOOD if n in (1, 3) else refused) as (
        url,
        requests,
    ):  # all, and then each alone
        client = RetrieverClient(url)
        futures = [client.submit([query], 3) for query in ("a", "b", "c")]
        outcomes = [future.exception(30) for future in futures]
        client.close()
    assert json.loads(requests[0])["queries"] == ["a", "b", "c"]
    assert sum(outcome is None for outcome in outcomes) == 2
    assert [str(outcome) for outcome in outcomes if outcome] == [
        f"retriever {url}/retrieve: HTTP status 400, 'one of them is odd'"
    ]


@pytest.mark.slow
def test_all_that_wait_are_told_within_the_limit_when_the_retriever_is_down() -> None:
    with answering(lambda n: None) as (url, _):
        client = RetrieverClient(url, timeout_s=0.5, limit_s=1.0)
        started = time.monotonic()
        futures = [
            client.submit([f"q{n}"], 1 + n % 40) for n in range(80)
        ]  # forty kinds of request, eight at a time
        assert all(isinstance(future.exception(60), EnvError) for future in futures)
        assert time.monotonic() - started < patience(20), "each kind for itself would take 40 s"
        client.close()
    client = RetrieverClient(url)
    hanging = client.submit(["q"], 1)
    client.close()
    assert isinstance(hanging.exception(10), EnvError), "closing leaves nobody waiting"
