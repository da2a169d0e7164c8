"""The engine before its first response: servers that are something else, and weights that cannot be
written.
"""

import asyncio
import contextlib
import resource
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("aiohttp")
from aiohttp import web

from gigpo_jax.core.errors import InputError
from gigpo_jax.engines.vllm.worker.extension import architecture, tokenizer_fingerprint
from gigpo_jax.models.files.weights import load_hf
from gigpo_jax.models.files.write_config import config_json
from gigpo_jax.models.text.tokenizer import load_tokenizer
from tests.engines.vllm import serving


@pytest.mark.parametrize(
    ("answers", "says"),
    [
        ({}, "not vLLM 0.32 or 0.33"),
        ({"/version": {"version": "0.11.0"}}, "/version says .*0.11.0"),
    ],
)
def test_other_programs_and_releases_are_refused(
    answers: dict[str, Any], says: str, tmp_path: Path
) -> None:
    config, params = load_hf(serving.TINY)
    url = _serve({"/health": None, "/version": [], **answers})
    with pytest.raises(InputError, match=says):
        serving.engine(
            config, params, load_tokenizer(serving.TINY), urls=(url,), weights_dir=tmp_path
        )


def test_weights_that_cannot_be_written_are_one_line_and_leave_nothing(tmp_path: Path) -> None:
    config, params = load_hf(serving.TINY)
    tokenizer = tokenizer_fingerprint((serving.TINY / "tokenizer.json").read_bytes())
    found = architecture(config_json(config, "float32")) | {
        "tokenizer": tokenizer,
        "dtype": "float32",
    }
    found |= {
        "head_dtype": "float32",
        "cache_dtype": "float32",
        "quantization": "none",
        "logprobs_mode": "processed_logprobs",
        "takes_seeds": True,
        "max_model_len": 96,
        "weights_dir": "/w",
    }
    url = _serve(
        {
            "/health": None,
            "/version": {"version": "0.32.0"},
            "/collective_rpc": {"results": [found]},
        }
    )
    words = load_tokenizer(serving.TINY)
    with (
        _files_of_at_most(100_000),
        pytest.raises(InputError, match=r"weights_dir: .*: cannot be written \(File too"),
    ):
        serving.engine(config, params, words, urls=(url,), weights_dir=tmp_path)
    assert list(tmp_path.iterdir()) == []


@contextlib.contextmanager
def _files_of_at_most(size: int) -> Iterator[None]:
    """Writing more bytes into one file fails, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def _serve(answers: dict[str, Any]) -> str:
    """Starts a web server and returns its address."""
    application = web.Application()
    for path, answer in answers.items():
        application.router.add_route("*", path, lambda _, answer=answer: web.json_response(answer))

    async def start() -> str:
        runner = web.AppRunner(application)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{runner.addresses[0][1]}"

    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    return asyncio.run_coroutine_threadsafe(start(), loop).result(10)
