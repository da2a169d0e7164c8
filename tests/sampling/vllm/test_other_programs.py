"""What answers under a server's address may be something else, or another release."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("aiohttp")
from aiohttp import web

from gigpo_jax.errors import InputError
from gigpo_jax.models.tokenizer import load_tokenizer
from gigpo_jax.models.weights import load_hf
from tests.sampling.vllm import serving


@pytest.mark.parametrize(
    ("answers", "says"),
    [({}, "not a vLLM server"), ({"/version": {"version": "0.11.0"}}, "install vLLM 0.32.x")],
)
def test_they_are_refused(answers: dict[str, Any], says: str, tmp_path: Path) -> None:
    config, params = load_hf(serving.TINY)
    url = _serve({"/health": None, "/version": [], **answers})
    with pytest.raises(InputError, match=says):
        serving.engine(config, params, load_tokenizer(serving.TINY), urls=(url,), weights_dir=tmp_path)


def _serve(answers: dict[str, Any]) -> str:
    """Some other web server, and its address."""
    application = web.Application()
    for path, answer in answers.items():
        application.router.add_get(path, lambda _, answer=answer: web.json_response(answer))

    async def start() -> str:
        runner = web.AppRunner(application)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{runner.addresses[0][1]}"

    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    return asyncio.run_coroutine_threadsafe(start(), loop).result(10)
