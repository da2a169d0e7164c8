"""Log-probabilities of given texts from vLLM servers, such as the servers of a teacher.

These servers keep their weights, and need no worker extension: only `/v1/models`, `/detokenize` and
`/v1/completions` with `prompt_logprobs` are used.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import aiohttp
import numpy as np

from gigpo_jax.core.errors import InputError
from gigpo_jax.engines.remote.protocol import Limits, ServerFault, read_probe
from gigpo_jax.engines.vllm.server import VllmServer
from gigpo_jax.models.text.tokenizer import Tokenizer

REQUESTS = 32  # under way at one server
PAUSE_S = 0.5  # after the first failure of a request; doubled after each
LONGEST_PAUSE_S = 10.0
PROGRESS_S = 30.0  # between two progress messages
DETOKENIZED = 4096  # token ids of one request
TEXT = "look around, then open the door on the left and read what is written behind it."
TOLERANCE = 0.1  # nats, mean difference of two servers' scores; bfloat16 rounds by up to 0.07

_T = TypeVar("_T")


class TextScorer:
    """Servers of one model that score texts."""

    def __init__(
        self, urls: Sequence[str], *, key: str, limits: Limits, say: Callable[[str], None]
    ) -> None:
        """Stores the addresses; connects to nothing yet.

        Args:
          urls: Addresses such as http://127.0.0.1:8123.
          key: Bearer token of all servers; "" for none.
          limits: Limits of waits.
          say: Function that takes progress messages.
        """
        self._urls = tuple(urls)
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._limits = limits
        self._say = say
        self._names: dict[str, str] = {}

    def check(self, tokenizer: Tokenizer, max_length: int) -> None:
        """Checks that all servers score texts alike.

        Args:
          tokenizer: Tokenizer of the texts.
          max_length: Largest number of tokens of a text.

        Raises:
          InputError: A server does not answer, or serves something else.
        """
        _wait_in_thread(self._check_servers(tokenizer, max_length))

    def score(self, texts: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Scores texts after `check`.

        Args:
          texts: [P] token ids each, P >= 2.

        Returns:
          [P - 1] f32 each, nats, the log-probabilities of all tokens but the first at temperature
          1.

        Raises:
          ServerFault: No server answered within the limits.
          InputError: A server refuses a text.
        """
        return _wait_in_thread(self._score_texts(texts))

    @asynccontextmanager
    async def _open_servers(self) -> AsyncIterator[list[VllmServer]]:
        # As in the engine: servers batch what waits there, and close idle connections after 5 s.
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=4.0),
            headers=self._headers,
            trust_env=False,
        ) as session:
            yield [VllmServer(url, session, self._limits) for url in self._urls]

    async def _check_servers(self, tokenizer: Tokenizer, max_length: int) -> None:
        text = np.asarray(tokenizer.encode(TEXT)[:max_length], np.int32)
        async with self._open_servers() as servers:
            scores = []
            for server in servers:
                try:
                    await self._check_model(server, max_length)
                    await _check_tokens(server, self._names[server.url], tokenizer)
                    scores.append(await self._request_scores(server, text))
                except ServerFault as err:
                    raise InputError(str(err), key=server.url, fix="correct its address") from err
                difference = float(np.mean(np.abs(scores[-1] - scores[0])))
                if not difference <= TOLERANCE:
                    raise InputError(
                        f"scores a text by {difference:.2g} nats a token differently from "
                        f"{servers[0].url}",
                        key=server.url,
                        fix="serve the same model everywhere",
                    )

    async def _check_model(self, server: VllmServer, max_length: int) -> None:
        """Waits for a server and checks its model's length."""
        deadline = time.monotonic() + self._limits.connect_s
        while True:
            try:
                answer = await server.call("GET", "/v1/models")
                break
            except ServerFault:
                if time.monotonic() > deadline:
                    raise
            await asyncio.sleep(PAUSE_S)
        try:
            # An adapter has a parent, the model itself has none.
            card = next(card for card in answer["data"] if not card.get("parent"))
            self._names[server.url] = str(card["id"])
            served_length = int(card["max_model_len"])
        except (TypeError, KeyError, ValueError, AttributeError, StopIteration) as err:
            raise ServerFault("/v1/models: not the answer of a vLLM server") from err
        # One token more: the server samples at least one.
        if served_length <= max_length:
            raise InputError(
                f"takes {served_length} tokens, prompts and responses have up to {max_length}",
                key=server.url,
                fix=f"start it with --max-model-len {max_length + 1}",
            )

    async def _score_texts(self, texts: Sequence[np.ndarray]) -> list[np.ndarray]:
        slots = asyncio.Semaphore(REQUESTS * len(self._urls))
        scored = 0

        async def score(text: np.ndarray, servers: list[VllmServer]) -> np.ndarray:
            nonlocal scored
            async with slots:
                row = await self._score_text(text, servers)
            scored += 1
            return row

        async def show_progress() -> None:
            while True:
                await asyncio.sleep(PROGRESS_S)
                self._say(f"teacher: {scored} of {len(texts)} texts scored")

        async with self._open_servers() as servers:
            progress = asyncio.create_task(show_progress())
            try:
                async with asyncio.TaskGroup() as group:
                    rows = [group.create_task(score(text, servers)) for text in texts]
            except ExceptionGroup as errors:
                # The first failure cancels the other requests; one reason is enough.
                raise errors.exceptions[0] from None
            finally:
                progress.cancel()
            return [row.result() for row in rows]

    async def _score_text(self, text: np.ndarray, servers: list[VllmServer]) -> np.ndarray:
        """Scores one text; a request that fails is repeated, if possible at another server."""
        failed_at = 0.0
        pause_s = PAUSE_S
        while True:
            # A server that failed last is asked again when the others failed more often.
            server = min(servers, key=lambda server: (server.failures, server.load))
            server.load += 1
            try:
                row = await self._request_scores(server, text)
            except ServerFault as err:
                server.failures += 1
                failed_at = failed_at or time.monotonic()
                if time.monotonic() - failed_at > self._limits.connect_s:
                    raise ServerFault(f"{server.url}: {err}") from err
            else:
                server.failures = 0
                return row
            finally:
                server.load -= 1
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _request_scores(self, server: VllmServer, text: np.ndarray) -> np.ndarray:
        tokens = text.tolist()
        body = {
            "model": self._names[server.url],
            "prompt": tokens,
            # 0 alternatives: the log-probabilities of the prompt's own tokens.
            "prompt_logprobs": 0,
            "max_tokens": 1,
        }
        limit_s = self._limits.request_s
        answer = await server.call("POST", "/v1/completions", body, limit_s=limit_s)
        try:
            (choice,) = answer["choices"]
        except (TypeError, KeyError, ValueError) as err:
            raise ServerFault("/v1/completions: unexpected answer") from err
        row = read_probe(choice, tokens)
        # Rounding may lift a value a little above 0; NaN is refused too.
        if not np.all(row <= 1e-3):
            raise ServerFault("log-probabilities above 0: leave --logprobs-mode out")
        return row


async def _check_tokens(server: VllmServer, model: str, tokenizer: Tokenizer) -> None:
    """Compares the texts of all token ids.

    Raises:
      InputError: They differ.
    """
    ids = [number for number in range(tokenizer.vocab_size) if tokenizer.token(number) is not None]
    for start in range(0, len(ids), DETOKENIZED):
        tokens = ids[start : start + DETOKENIZED]
        answer = await server.call("POST", "/detokenize", {"model": model, "tokens": tokens})
        text = answer.get("prompt") if isinstance(answer, dict) else None
        # Without spaces: transformers may remove those before punctuation.
        spelled = tokenizer.decode(tokens, keep_special=True)
        if not isinstance(text, str) or "".join(text.split()) != "".join(spelled.split()):
            raise InputError(
                f"its tokens are not those of the policy (ids {tokens[0]} to {tokens[-1]})",
                key=server.url,
                fix="serve a model with the policy's tokenizer",
            )


def _wait_in_thread(coroutine: Coroutine[Any, Any, _T]) -> _T:
    """Runs a coroutine in a new thread, because the caller's may have a running event loop."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, coroutine).result()
