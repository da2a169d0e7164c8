"""Real servers for tests, engines that use them, and a proxy that misbehaves between the two."""

import asyncio
import contextlib
import functools
import json
import os
import pathlib
import signal
import subprocess
import threading
import time
import urllib.request
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from gigpo_jax.engines.base import SamplingParams
from gigpo_jax.engines.jax.jax_engine import EngineSettings, JaxEngine
from gigpo_jax.engines.remote.engine import RemoteEngine, RemoteSettings
from gigpo_jax.engines.remote.protocol import Limits, generate_request
from gigpo_jax.engines.remote.weight_store import WeightStore
from gigpo_jax.engines.vllm.launch import ServerProcess, VllmSettings, free_ports
from gigpo_jax.engines.vllm.server import VllmServer
from gigpo_jax.engines.vllm.worker.extension import tokenizer_fingerprint
from gigpo_jax.models import decoder, next_tokens
from gigpo_jax.models.text.tokenizer import Tokenizer
from gigpo_jax.rollout import remote_engines

ROOT = pathlib.Path(__file__).parents[3]
TINY = ROOT / "models/alfworld_tiny"
PYTHON = ROOT / ".venv-vllm/bin/python"
KEY = "open sesame"
MAX_LENGTH = 96
LONG = 1024  # tokens of a prompt of an agent and its response
START_S = 600.0
LIMITS = Limits(start_s=START_S, connect_s=10.0, request_s=120.0, push_s=120.0, restarts=2)
# With servers that will not come back.
IMPATIENT = replace(LIMITS, connect_s=2.0, restarts=0)


def server_settings(
    model: pathlib.Path, folder: pathlib.Path, weights_dir: pathlib.Path, **changes: Any
) -> VllmSettings:
    """How tests start a server."""
    settings = {"dtype": "float32", "max_length": MAX_LENGTH, "sequences": 64, "gpu": False}
    return VllmSettings(
        python=PYTHON, model=model, folder=folder, weights_dir=weights_dir, **(settings | changes)
    )


def start(
    model: pathlib.Path, folder: pathlib.Path, weights_dir: pathlib.Path, **changes: Any
) -> ServerProcess:
    """Starts a server without waiting for it."""
    (port,) = free_ports(1)
    process = ServerProcess(server_settings(model, folder, weights_dir, **changes), port, KEY)
    process.start()
    return process


def wait_up(process: ServerProcess) -> None:
    """Waits until a server answers."""
    until = time.monotonic() + START_S
    while True:
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(process.url + "/health", timeout=5),
        ):
            return
        assert process.running, process.log_tail()
        assert time.monotonic() < until, process.log_tail()
        time.sleep(0.2)


def family(process: ServerProcess) -> dict[int, str]:
    """The processes of a server: id -> command line; the guard is not among them."""
    assert process._process is not None
    listing = subprocess.run(
        ["ps", "-eww", "-o", "pid,ppid,args"], capture_output=True, text=True, check=True
    ).stdout
    rows = [line.split(None, 2) for line in listing.splitlines()[1:]]
    found: dict[int, str] = {}
    parents = {process._process.pid}
    while parents:
        children = {
            int(pid): args
            for pid, parent, args in rows
            if int(parent) in parents and int(pid) not in found
        }
        found |= children
        parents = set(children)
    return found


def kill_hard(process: ServerProcess) -> None:
    """kill -9 of the server's front process, as the system does when memory runs out."""
    command = next(pid for pid, args in family(process).items() if "api_server" in args)
    os.kill(command, signal.SIGKILL)


def engine(
    config: decoder.DecoderConfig,
    params: decoder.Params,
    words: Tokenizer,
    *,
    urls: tuple[str, ...] = (),
    processes: tuple[ServerProcess, ...] = (),
    weights_dir: pathlib.Path,
    said: list[str] | None = None,
    **changes: Any,
) -> RemoteEngine:
    """An engine over such servers."""
    settings = RemoteSettings(
        **{
            "server": functools.partial(VllmServer, num_tokens=config.num_tokens),
            "make_request": generate_request,
            "urls": urls,
            "processes": processes,
            "key": KEY,
            "dtype": "float32",
            "max_length": MAX_LENGTH,
            "tokenizer": tokenizer_fingerprint((TINY / "tokenizer.json").read_bytes()),
            "probe": remote_engines.probe_tokens(words, MAX_LENGTH),
            "limits": LIMITS,
            **changes,
        }
    )
    say = said.append if said is not None else print
    store = WeightStore(weights_dir)
    return RemoteEngine(config, params, settings=settings, store=store, tokenizer=words, say=say)


@dataclass(frozen=True)
class Served:
    """A model and the server that was started from its folder.

    Attributes:
      model: The folder.
      config: Shape of the model.
      params: Its parameters.
      words: Its tokenizer.
      process: The server.
      weights_dir: Folder of pushed weights.
    """

    model: pathlib.Path
    config: decoder.DecoderConfig
    params: decoder.Params
    words: Tokenizer
    process: ServerProcess
    weights_dir: pathlib.Path

    @property
    def url(self) -> str:
        return self.process.url

    def engine(self, params: decoder.Params | None = None, **changes: Any) -> RemoteEngine:
        """An engine of these parameters, or others, over this server, or over `urls`."""
        settings = {
            "urls": (self.url,),
            "weights_dir": self.weights_dir,
            "tokenizer": tokenizer_fingerprint((self.model / "tokenizer.json").read_bytes()),
        }
        params = self.params if params is None else params
        return engine(self.config, params, self.words, **(settings | changes))

    def in_process(self) -> JaxEngine:
        return in_process(self.config, self.params, self.words)


def fetch(url: str, path: str, body: Any = None, key: str = KEY) -> bytes:
    """Answer to a request of the test's own."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url + path, data, headers)
    with urllib.request.urlopen(request, timeout=START_S) as answer:
        return answer.read()


def call(url: str, path: str, body: Any = None, key: str = KEY) -> Any:
    """As `fetch`, for answers in JSON."""
    return json.loads(fetch(url, path, body, key) or b"null")


def raw_greedy(url: str, prompts: list[list[int]]) -> list[tuple[list[int], list[float]]]:
    """What a server answers to whoever asks, without this client."""
    sampling = {"temperature": 0.0, "max_tokens": 16, "logprobs": 0, "ignore_eos": True}
    out = []
    for prompt in prompts:
        body = {"token_ids": prompt, "sampling_params": sampling}
        (choice,) = call(url, "/inference/v1/generate", body)["choices"]
        logprobs = [entry["logprob"] for entry in choice["logprobs"]["content"]]
        out.append((choice["token_ids"], logprobs))
    return out


def shaken(params: decoder.Params, seed: int, size: float = 0.02) -> decoder.Params:
    """Other parameters, near enough to give sensible distributions."""
    keys = iter(jax.random.split(jax.random.key(seed), len(jax.tree.leaves(params))))
    return jax.tree.map(
        lambda x: x + size * jax.random.normal(next(keys), x.shape, x.dtype), params
    )


def learner_logprobs(
    config: decoder.DecoderConfig,
    params: decoder.Params,
    prompt: list[int],
    response: np.ndarray,
    temperature: float,
) -> np.ndarray:
    """What the learner gives the tokens of a response."""
    scores = learner_distributions(config, params, prompt, response, temperature)
    return scores[np.arange(response.size), response]


def learner_distributions(
    config: decoder.DecoderConfig,
    params: decoder.Params,
    prompt: list[int],
    response: np.ndarray,
    temperature: float,
) -> np.ndarray:
    """Log-probabilities of all tokens at each place of a response; short texts are padded to one
    length, so that one program serves all.
    """
    tokens = np.zeros((1, max(MAX_LENGTH, len(prompt) + response.size)), np.int32)
    tokens[0, : len(prompt) + response.size] = [*prompt, *response.tolist()]
    scores = _scores(config, params, tokens, temperature or 1.0)
    return np.asarray(scores)[len(prompt) - 1 : len(prompt) + response.size - 1]


@functools.partial(jax.jit, static_argnums=0)
def _scores(
    config: decoder.DecoderConfig, params: decoder.Params, tokens: jax.Array, temperature: float
) -> jax.Array:
    return jax.nn.log_softmax(next_tokens.logits(config, params, tokens)[0] / temperature)


def in_process(
    config: decoder.DecoderConfig, params: decoder.Params, tokenizer: Tokenizer
) -> JaxEngine:
    """The other engine, with few programs to compile."""
    settings = EngineSettings(
        slots=12, max_length=MAX_LENGTH, prefill_buckets=(80,), prefill_rows=(12,)
    )
    return JaxEngine(config, params, settings, tokenizer=tokenizer)


def ask(engine: RemoteEngine, prompts: list[list[int]], **settings: Any) -> list[Any]:
    """One response to each prompt, all at once; each request has its own key and session."""
    settings = {"max_tokens": 16} | settings
    session = settings.pop("session", None)

    async def together() -> list[Any]:
        params = [
            SamplingParams(key=(7, i), session=session or (7, i), **settings)
            for i in range(len(prompts))
        ]
        return await asyncio.gather(
            *(engine.generate(p, s) for p, s in zip(prompts, params, strict=True))
        )

    return asyncio.run(together())


class Proxy:
    """Passes connections on to a server, except that the next `count` requests to a path meet with
    faults in turn.

    Attributes:
      url: where it listens.
      seen: requests to the path so far.
    """

    def __init__(self, target: str):
        """Starts in a thread of its own."""
        self._host, port = target.removeprefix("http://").split(":")
        self._port, self._path = int(port), b""
        self.faults, self.count, self.seen = [""], 0, 0
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._server = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._serve, "127.0.0.1", 0)

    def break_next(
        self, faults: list[str], count: int, path: bytes = b"/inference/v1/generate"
    ) -> None:
        """From now on the next `count` requests are refused, delayed, cut, emptied or answered with
        nonsense.
        """
        self.faults, self.count, self.seen, self._path = faults, count, 0, path

    def close(self) -> None:
        """No new connections."""
        self._loop.call_soon_threadsafe(self._server.close)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(
                (
                    int(line[15:])
                    for line in head.split(b"\r\n")
                    if line.lower().startswith(b"content-length:")
                ),
                0,
            )
            body = await reader.readexactly(length)
            fault = ""
            if self._path in head.split(b"\r\n")[0] and self.count > 0:
                fault = self.faults[self.seen % len(self.faults)]
                self.count, self.seen = self.count - 1, self.seen + 1
            if not await self._misbehave(fault, writer):
                await self._forward(head, body, writer, cut=fault == "cut")
        writer.close()

    async def _misbehave(self, fault: str, writer: asyncio.StreamWriter) -> bool:
        """Whether the fault is instead of an answer."""
        answers = {
            "nonsense": b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\nConnection: close\r\n\r\n<html>oh!",
            "empty": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}",
            "error": b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
            "half": b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n{",
            "refuse": b"",
        }
        if fault == "delay":
            await asyncio.sleep(30)
        if fault in answers:
            writer.write(answers[fault])
            await writer.drain()
            if fault == "half":  # keeps the connection open and says no more
                await asyncio.sleep(30)
        return fault in answers

    async def _forward(
        self, head: bytes, body: bytes, writer: asyncio.StreamWriter, *, cut: bool
    ) -> None:
        up_reader, up_writer = await asyncio.open_connection(self._host, self._port)
        lines = [
            line for line in head.split(b"\r\n") if not line.lower().startswith(b"connection:")
        ]
        up_writer.write(b"\r\n".join([lines[0], b"Connection: close", *lines[1:]]) + body)
        answer = await up_reader.read(-1)
        writer.write(answer[: len(answer) // 2] if cut else answer)
        await writer.drain()
        up_writer.close()
