"""Input beside the format: byte order marks, packed answers, wrong flags."""

import gzip
import json
import runpy
import time
from pathlib import Path

import pytest

pytest.importorskip("aiohttp")

from gigpo_jax.core.errors import InputError
from gigpo_jax.env_bridge.types import EnvError
from gigpo_jax.envs import registry
from gigpo_jax.envs.command_line import main
from gigpo_jax.envs.search.questions import load_questions
from gigpo_jax.envs.search.retrieval.client import RetrieverClient
from gigpo_jax.envs.search.retrieval.corpus import read_corpus
from gigpo_jax.envs.search.retrieval.retriever import Document
from gigpo_jax.rollout.environment import all_tasks, list_environments
from tests.envs.search.serving import answering
from tests.processes import patience

ROOT = Path(__file__).parents[3]
MARK = b"\xef\xbb\xbf"


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_byte_order_mark_at_the_start_of_a_file_is_skipped(tmp_path: Path, pack: type) -> None:
    suffix = "jsonl.gz" if pack is gzip.compress else "jsonl"
    (tmp_path / f"corpus.{suffix}").write_bytes(
        pack(MARK + b'{"id": 1, "contents": "a"}\n{"id": 2, "contents": "b"}\n')
    )
    (tmp_path / f"test.{suffix}").write_bytes(
        pack(MARK + b'\n{"question": "who?", "answer": "he"}\n')
    )
    assert list(read_corpus(tmp_path / f"corpus.{suffix}")) == [
        Document("1", "a"),
        Document("2", "b"),
    ]
    assert [question.text for question in load_questions(tmp_path, "test")] == ["who?"]


def test_a_byte_order_mark_elsewhere_is_refused_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "test.jsonl").write_bytes(b"\n" + MARK + b'{"question": "who?", "answer": "he"}\n')
    with pytest.raises(InputError, match=r"test\.jsonl:2: not JSON"):
        load_questions(tmp_path, "test")


def test_packed_answers_are_not_asked_for_and_a_huge_one_is_not_unpacked() -> None:
    packed = gzip.compress(b" " * (100 << 20))
    head = (
        "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n"
        f"Content-Length: {len(packed)}\r\nConnection: close\r\n\r\n"
    )
    with answering(lambda n: head.encode() + packed) as (url, requests):
        client = RetrieverClient(url, timeout_s=3.0, limit_s=3.0)
        started = time.monotonic()
        with pytest.raises(EnvError, match="not of the /retrieve protocol"):
            client.search(["who"], 3)
        assert time.monotonic() - started < patience(2)
        client.close()
    assert len(requests) == 1


def test_half_of_the_flags_of_a_dense_server_is_refused(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    for flag in ("--faiss", "--encoder"):
        assert (
            main(
                [
                    "search",
                    "serve",
                    "--corpus",
                    str(world / "index"),
                    "--port",
                    "0",
                    flag,
                    str(tmp_path),
                ]
            )
            == 2
        )
        assert "give both" in capsys.readouterr().err


def test_questions_without_a_retriever_are_told(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text(json.dumps({"question": "who?", "answer": "he"}))
    with pytest.raises(InputError, match="no retriever; give the URL of one"):
        registry.make("search", data=str(tmp_path))


def test_published_settings_are_not_played_in_the_synthetic_world(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    config = runpy.run_path(str(ROOT / "configs" / "search.py"))["get_config"]()
    with pytest.raises(InputError, match=r"env\.options\.data='data/search': no such folder"):
        all_tasks(list_environments(config))
