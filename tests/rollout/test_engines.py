"""Which servers a host uses, and what verifies a push."""

import pathlib

import pytest

from gigpo_jax.config import default_config
from gigpo_jax.core.errors import InputError
from gigpo_jax.models.text.tokenizer import load_tokenizer
from gigpo_jax.rollout import remote_engines
from gigpo_jax.rollout.remote_engines import probe_tokens, urls_of_host

TINY = pathlib.Path(__file__).parents[2] / "models/alfworld_tiny"


def test_every_server_belongs_to_one_host() -> None:
    urls = "http://a:1/, http://b:1,http://c:1"
    assert urls_of_host(urls, 0, 1) == ("http://a:1", "http://b:1", "http://c:1")
    assert [urls_of_host(urls, host, 2) for host in (0, 1)] == [
        ("http://a:1", "http://c:1"),
        ("http://b:1",),
    ]
    assert urls_of_host("", 1, 4) == ()
    with pytest.raises(InputError, match="3 servers for 4 hosts"):
        urls_of_host(urls, 0, 4)


def test_the_probe_is_a_prompt_that_the_tokenizer_knows_and_that_fits() -> None:
    tokenizer = load_tokenizer(TINY)
    probe = probe_tokens(tokenizer, 96)
    assert 16 < len(probe) <= 64
    assert tokenizer.decode(probe).startswith("you are in the middle of a room")
    assert len(probe_tokens(tokenizer, 12)) == 11


def test_servers_that_a_run_starts_take_its_adapters(tmp_path: pathlib.Path) -> None:
    python = tmp_path / "bin/python"
    python.parent.mkdir()
    python.touch()
    config = default_config()
    config.engine.vllm.python = str(python)
    config.model.path = str(TINY)
    for rank, words in ((0, ()), (12, ("--enable-lora", "--max-lora-rank", "16"))):
        config.model.lora.rank = rank
        (process,) = remote_engines._make_processes(config, tmp_path, tmp_path, "sesame")
        assert set(words) <= set(process._command)
        assert ("--enable-lora" in process._command) == bool(rank)
