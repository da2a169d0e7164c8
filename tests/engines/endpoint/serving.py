"""A real endpoint in front of a real engine of a few thousand parameters, and clients of it."""

import contextlib
import functools
import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import openai

from gigpo_jax.engines.base import Completion, SamplingParams
from gigpo_jax.engines.endpoint.server import Endpoint
from gigpo_jax.engines.endpoint.settings import EndpointSettings
from gigpo_jax.engines.jax.jax_engine import EngineSettings, JaxEngine
from gigpo_jax.models import decoder
from gigpo_jax.models.text.tokenizer import Tokenizer
from gigpo_jax.models.text.word_tokenizer import word_tokenizer

KEY = "open sesame"
TOKENIZER = word_tokenizer(["you stand before a door. open it take the key go north and south"])
SAMPLING = SamplingParams(temperature=1.5, max_tokens=8, stop_token_ids=TOKENIZER.stop_token_ids)
MAX_PROMPT = 96
DOOR = [{"role": "user", "content": "you stand before a door."}]
HEADS = {"model": "policy", "messages": DOOR}


class Watched(JaxEngine):
    """A real engine that notes what it is asked for and what it answers."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.seen: list[tuple[list[int], SamplingParams, Completion]] = []

    async def generate(
        self, tokens: Sequence[int], params: SamplingParams, *rest: Any, **more: Any
    ) -> Completion:
        completion = await super().generate(tokens, params, *rest, **more)
        self.seen.append((list(tokens), params, completion))
        return completion


@functools.cache
def small_policy() -> tuple[decoder.DecoderConfig, Any]:
    config = decoder.DecoderConfig(
        vocab_size=TOKENIZER.vocab_size,
        hidden_size=16,
        intermediate_size=32,
        num_layers=1,
        num_heads=2,
        num_kv_heads=1,
        head_dim=8,
        rope_theta=1e4,
    )
    return config, decoder.init_params(config, jax.random.key(0), jax.numpy.float32)


def make_engine(
    policy: tuple[decoder.DecoderConfig, Any] | None = None,
    tokenizer: Tokenizer = TOKENIZER,
    longest: int = MAX_PROMPT,
    decode_steps: int = 16,
    *,
    keeps_entropies: bool = False,
) -> Watched:
    settings = EngineSettings(
        slots=4,
        max_length=longest + SAMPLING.max_tokens,
        prefill_buckets=(longest,),
        prefill_rows=(4,),
        decode_steps=decode_steps,
        keeps_entropies=keeps_entropies,
    )
    return Watched(*(policy or small_policy()), settings, tokenizer=tokenizer, version=7)


@contextlib.contextmanager
def serving(
    engine: JaxEngine, tokenizer: Tokenizer = TOKENIZER, **changes: Any
) -> Iterator[Endpoint]:
    fields = {
        "host": "127.0.0.1",
        "port": 0,
        "key": KEY,
        "model": "policy",
        "sampling": SAMPLING,
        "max_prompt_tokens": MAX_PROMPT,
        "max_calls": 3,
        "max_sessions": 2,
    }
    on_end = changes.pop("on_end", lambda session: None)
    endpoint = Endpoint(engine, tokenizer, EndpointSettings(**fields | changes), on_end=on_end)
    with contextlib.closing(endpoint):
        yield endpoint


def client(url: str, key: str = KEY) -> openai.OpenAI:
    """The official client; it does not repeat requests that failed."""
    return openai.OpenAI(base_url=url, api_key=key, max_retries=0, timeout=300)


def post(endpoint: Endpoint, path: str, body: str, **headers: str) -> tuple[int, dict]:
    """The status and the error of a request as bytes."""
    url = endpoint.url + path
    given = {"Authorization": f"Bearer {KEY}"} | headers
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url, body.encode(), given), timeout=60
        ) as answer:
            return answer.status, {}
    except urllib.error.HTTPError as err:
        return err.code, json.loads(err.read())["error"]
