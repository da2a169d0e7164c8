"""From a model folder to text, on the in-process engine."""

import asyncio
import concurrent.futures
from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any

import jax.numpy as jnp

from gigpo_jax.errors import InputError
from gigpo_jax.files import read_object
from gigpo_jax.models.tokenizer import check_fits, load_tokenizer
from gigpo_jax.models.weights import load_hf
from gigpo_jax.policy import model_folder
from gigpo_jax.sampling.base import Completion, SamplingParams, request_key
from gigpo_jax.sampling.jax_engine import EngineSettings, JaxEngine


class TextModel:
    """A language model that answers prompts, on one device; close it, or use it as a context manager.

    Attributes:
      stop: strings that end a response if `generate` is given no others: `stop_strings` of generation_config.json.
    """

    def __init__(
        self,
        path: str,
        *,
        revision: str = "",
        dtype: Any = "bfloat16",
        max_length: int = 2048,
        slots: int = 8,
        enable_thinking: bool = True,
    ) -> None:
        """Loads a model.

        Args:
          path: a Hugging Face folder, such as `gigpo export` writes, or ORG/NAME of the Hub.
          revision: branch, tag or commit of a model of the Hub.
          dtype: of parameters, activations and cache.
          max_length: of prompt and response together, tokens.
          slots: responses that are decoded together.
          enable_thinking: the switch of chat templates such as Qwen3's.

        Raises:
          InputError: no such model, or a folder without what belongs to one.
        """
        folder = model_folder(path, revision, key="path")
        self.tokenizer = load_tokenizer(folder, enable_thinking=enable_thinking)
        config, params = load_hf(folder, dtype=dtype)
        if config.value_head:
            raise InputError(f"path={path!r}: a critic, which scores no tokens; name a language model")
        check_fits(self.tokenizer, config.vocab_size, path)
        file = folder / "generation_config.json"
        self.stop = tuple((read_object(file) if file.exists() else {}).get("stop_strings") or ())
        settings = EngineSettings(slots=slots, max_length=max_length, dtype=jnp.dtype(dtype))
        self._engine = JaxEngine(config, params, settings, tokenizer=self.tokenizer)

    def generate(
        self,
        *prompts: str,
        chat: bool = True,
        max_tokens: int = 512,
        temperature: float = 0.0,
        top_p: float = 1.0,
        top_k: int = -1,
        seed: int | None = None,
        stop: Sequence[str] | None = None,
    ) -> list[str]:
        """Answers every prompt; an answer depends on its prompt, its place among the prompts and `seed`.

        Args:
          prompts: each a user's message, put into the chat template; without `chat` a text that is continued.
          chat: whether there is a chat template around the prompts.
          max_tokens: limit of a response, tokens.
          temperature: 0 takes the likeliest token; above 0 samples, and `seed` is needed.
          top_p, top_k: as in `SamplingParams`.
          seed: of the random keys.
          stop: strings that end a response, part of it; None: those of the model.

        Returns:
          The text of each response, without special tokens.

        Raises:
          InputError: a prompt does not fit, or a setting is out of its range.
        """
        if temperature and seed is None:
            raise InputError(f"seed=None: sampling with temperature={temperature} needs a seed; give one")
        settings = SamplingParams(
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            max_tokens=max_tokens,
            stop_token_ids=self.tokenizer.stop_token_ids,
            stop_strings=self.stop if stop is None else tuple(stop),
        )
        encode = self.tokenizer.encode_chat if chat else self.tokenizer.encode

        async def together() -> list[Completion]:
            keys = [request_key(seed or 0, 0, number, 0, 0) for number in range(len(prompts))]
            asked = [(encode(prompt), replace(settings, key=key)) for prompt, key in zip(prompts, keys)]
            return await asyncio.gather(*(self._engine.generate(*request) for request in asked))

        # In a thread: a notebook has an event loop running in this one.
        with concurrent.futures.ThreadPoolExecutor(1) as thread:
            responses = thread.submit(asyncio.run, together()).result()
        return [self.tokenizer.decode(response.tokens.tolist()) for response in responses]

    def close(self) -> None:
        """Frees the engine; may be called twice."""
        self._engine.close()

    def __enter__(self) -> "TextModel":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
