"""A learner's engine with faulty pushes: `pushes.py half|whole URL FOLDER`; prints JSON.

half: pushes one version, and a third of the next; then it hangs.
whole: pushes two versions, then repeats the second and the first byte by byte.
"""

import asyncio
import json
import pathlib
import sys
import time
from collections.abc import Iterator
from typing import Any

from gigpo_jax.engines.jax_server import client
from gigpo_jax.engines.remote.engine import RemoteEngine
from gigpo_jax.models.files.weights import load_hf
from gigpo_jax.models.text.tokenizer import load_tokenizer
from tests.engines.jax_server import serving
from tests.engines.vllm.serving import TINY, ask, shaken

PIECE_BYTES = 64 << 10


def third(pieces: Iterator[tuple[str, int, bytes]]) -> Iterator[tuple[str, int, bytes]]:
    """Yields a third of the pieces, and hangs."""
    listed = list(pieces)
    assert len(listed) >= 3
    yield from listed[: len(listed) // 3]
    print("a third", flush=True)
    time.sleep(600)


class Recorder(client.JaxServer):
    """Keeps the requests of its pushes."""

    requests: list[tuple[str, str, Any, bytes | None]]

    async def push(self, weights: Any) -> dict[str, float]:
        self.requests = []
        return await super().push(weights)

    async def call(
        self, method: str, path: str, body: Any = None, *, data: bytes | None = None, **limit: Any
    ) -> Any:
        if path.startswith(("/weights/", "/load")):
            self.requests.append((method, path, body, data))
        return await super().call(method, path, body, data=data, **limit)

    async def repeat(self, requests: list[tuple[str, str, Any, bytes | None]]) -> str:
        """Sends the requests again, and returns the label that the server has then."""
        for method, path, body, data in requests:
            await super().call(method, path, body, data=data)
        return await self.weights_label()


def run(what: str, url: str, folder: pathlib.Path) -> dict[str, Any]:
    config, params = load_hf(TINY)
    words = load_tokenizer(TINY)
    prompts = [words.encode_chat(f"you are in room {number} .") for number in range(8)]
    client.PIECE_BYTES = PIECE_BYTES

    def make_server(*args: Any) -> Recorder:
        return Recorder(*args, folder=folder)

    def responses(engine: RemoteEngine) -> list[Any]:
        return [
            [response.tokens.tolist(), response.logprobs.tolist(), response.version]
            for response in ask(engine, prompts)
        ]

    with serving.engine(config, params, words, folder, url, server=make_server) as engine:
        (server,) = engine._pool.servers
        assert isinstance(server, Recorder)

        def repeat(requests: Any) -> str:
            return asyncio.run_coroutine_threadsafe(server.repeat(requests), engine._loop).result(
                60
            )

        found: dict[str, Any] = {"first": responses(engine)}
        if what == "half":
            pieces = client.read_pieces
            client.read_pieces = lambda *args: third(pieces(*args))
        first_push = server.requests
        engine.update_weights(shaken(params, 1), 1)
        second_push = server.requests
        found["second"] = responses(engine)
        found["label after a repetition"] = repeat(second_push).rpartition(":")[2]
        found["repeated"] = responses(engine)
        found["label after an older push"] = repeat(first_push).rpartition(":")[2]
        found["after an older push"] = responses(engine)
        found["retries"] = engine.retries
    return found


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3]))))
