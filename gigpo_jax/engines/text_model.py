"""Text generation from a model folder, on the in-process engine."""

import asyncio
import concurrent.futures
from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any

import jax.numpy as jnp

from gigpo_jax.core.errors import InputError
from gigpo_jax.engines.base import Completion, SamplingParams, request_key
from gigpo_jax.engines.jax.jax_engine import EngineSettings, JaxEngine
from gigpo_jax.models.files.folders import model_folder
from gigpo_jax.models.files.weights import load_hf
from gigpo_jax.models.text.tokenizer import check_vocabulary, load_tokenizer
from gigpo_jax.models.text.tokenizer_files import read_stop_strings


class TextModel:
    """A language model that answers prompts on one device; close it, or use it in a `with` block.

    Attributes:
      tokenizer: Tokenizer of the model folder.
      stop: Strings that end a response by default: `stop_strings` of gigpo_jax.json and
        generation_config.json.
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
          path: Hugging Face folder, such as `gigpo export` writes, or ORG/NAME of the Hub.
          revision: Branch, tag or commit of a model of the Hub.
          dtype: Dtype of parameters, activations and cache.
          max_length: Largest number of tokens of prompt and response together, at most the model's
            positions.
          slots: Number of responses that are decoded together.
          enable_thinking: Switch of chat templates such as Qwen3's.

        Raises:
          InputError: There is no such model, or its folder is incomplete.
        """
        folder = model_folder(path, revision, key="path")
        self.tokenizer = load_tokenizer(folder, enable_thinking=enable_thinking)
        config, params = load_hf(folder, dtype=dtype)
        if config.value_head:
            raise InputError(
                "a critic, which scores no tokens",
                key="path",
                value=repr(path),
                fix="name a language model",
            )
        num_tokens = check_vocabulary(self.tokenizer, config.vocab_size, path)
        config = replace(config, num_tokens=num_tokens)
        if max_length > config.longest_text:
            raise InputError(
                f"the model has {config.longest_text} positions "
                "(max_position_embeddings in config.json)",
                key="max_length",
                value=max_length,
                fix=f"use at most {config.longest_text}",
            )
        self.stop = read_stop_strings(folder)
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
        """Answers every prompt; an answer depends on the prompt, its index and `seed`.

        Args:
          prompts: Messages of a user, each put into the chat template; without `chat` texts that
            are continued.
          chat: Whether the chat template is used.
          max_tokens: Largest number of tokens of a response.
          temperature: Temperature; 0 takes the likeliest token, above 0 `seed` is needed.
          top_p, top_k: Limits of the sampled tokens; see `SamplingParams`.
          seed: Seed of the random keys.
          stop: Strings that end a response and are part of it; None: the model's.

        Returns:
          The text of each response, without special tokens.

        Raises:
          InputError: A prompt does not fit, or a setting is out of its range.
        """
        if temperature and seed is None:
            raise InputError(
                f"sampling with temperature={temperature} needs a seed",
                key="seed",
                value="None",
                fix="give one",
            )
        settings = SamplingParams(
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            max_tokens=max_tokens,
            stop_token_ids=self.tokenizer.stop_token_ids,
            stop_strings=self.stop if stop is None else tuple(stop),
        )
        encode = self.tokenizer.encode_chat if chat else self.tokenizer.encode_plain

        async def generate_responses() -> list[Completion]:
            calls = []
            for index, prompt in enumerate(prompts):
                # Without a seed the temperature is 0, and no key is read.
                key = request_key(seed or 0, 0, index, 0, 0)
                calls.append(self._engine.generate(encode(prompt), replace(settings, key=key)))
            return await asyncio.gather(*calls)

        # In a thread of its own: in a notebook this thread already runs an event loop.
        with concurrent.futures.ThreadPoolExecutor(1) as thread:
            responses = thread.submit(asyncio.run, generate_responses()).result()
        return [self.tokenizer.decode(response.tokens.tolist()) for response in responses]

    def close(self) -> None:
        """Frees the engine; may be called twice."""
        self._engine.close()

    def __enter__(self) -> "TextModel":
        return self

    def __exit__(
        self, kind: type | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
