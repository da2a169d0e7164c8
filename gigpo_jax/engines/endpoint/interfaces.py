"""Requests of all interfaces, read and encoded: OpenAI's three, and Anthropic's Messages."""

import asyncio
import concurrent.futures
import functools
from dataclasses import dataclass
from typing import Any

from gigpo_jax.engines.endpoint import messages, responses
from gigpo_jax.engines.endpoint.answers import OpenAIForm
from gigpo_jax.engines.endpoint.clamp import Clamp
from gigpo_jax.engines.endpoint.requests import (
    PolicyRequest,
    RequestError,
    count_characters,
    read_chat_request,
    read_completion_request,
)
from gigpo_jax.engines.endpoint.sessions import EndpointSession
from gigpo_jax.engines.endpoint.settings import EndpointSettings
from gigpo_jax.engines.endpoint.streams import AnswerForm
from gigpo_jax.models.text.tokenizer import Tokenizer

INTERFACES = ("chat/completions", "completions", "responses", "messages")  # paths below /v1
MAX_CHARACTERS_PER_TOKEN = 64  # of a prompt, on average; a text of any language has fewer


@dataclass(frozen=True)
class PolicyCall:
    """A request that was read.

    Attributes:
      chat: Its body in the form of a chat or a completion.
      request: Content of the request.
      tokens: [P], the prompt.
    """

    chat: dict[str, Any]
    request: PolicyRequest
    tokens: list[int]


class RequestReader:
    """Reads the bodies of requests and encodes their prompts."""

    def __init__(self, tokenizer: Tokenizer, settings: EndpointSettings) -> None:
        """Starts the thread that encodes."""
        self._tokenizer = tokenizer
        self._settings = settings
        self._clamp = Clamp(settings.model) if settings.clamp else None
        # One thread: the calls of a session keep their order. Rendering and encoding a long prompt
        # in the event loop would stop all other requests.
        self._encoder = concurrent.futures.ThreadPoolExecutor(1, "endpoint-encoder")

    def close(self) -> None:
        """Ends the thread, without waiting: a prompt that is being encoded is not interrupted."""
        self._encoder.shutdown(wait=False, cancel_futures=True)

    async def read(
        self, interface: str, body: dict[str, Any], session: EndpointSession | None
    ) -> PolicyCall:
        """Reads a request of one of `INTERFACES`.

        Raises:
          RequestError: The request is wrong, or its prompt too long.
        """
        chat = self._convert_body(interface, body, session)
        self._check_model(chat)
        self._check_characters(chat, session)
        is_chat = interface != "completions"
        encode = functools.partial(self._read_and_encode, chat, session, is_chat)
        return await asyncio.get_running_loop().run_in_executor(self._encoder, encode)

    def make_form(self, interface: str, call: PolicyCall, body: dict[str, Any]) -> AnswerForm:
        """Returns the form of the answer to a request."""
        model = self._settings.model
        length = len(call.tokens)
        if interface == "messages":
            return messages.MessagesForm(call.request, length, model)
        if interface == "responses":
            return responses.ResponsesForm(call.request, length, model, self._tokenizer, body)
        return OpenAIForm(call.request, length, model, self._tokenizer)

    def _convert_body(
        self, interface: str, body: dict[str, Any], session: EndpointSession | None
    ) -> dict[str, Any]:
        """Returns the body of a request in the form of a chat or a completion."""
        if interface == "messages":
            body = messages.convert_messages(body)
        elif interface == "responses":
            body = responses.convert_responses(body, {} if session is None else session.chats)
        if self._clamp is not None:
            sampling = self._settings.sampling if session is None else session.sampling
            body = self._clamp(body, sampling, recorded=session is not None)
        return body

    def _check_model(self, body: dict[str, Any]) -> None:
        if body.get("model") != self._settings.model:
            raise RequestError(
                f"model={body.get('model')!r}: this endpoint has {self._settings.model!r}",
                status=404,
                code="model_not_found",
                param="model",
            )

    def _check_characters(self, body: dict[str, Any], session: EndpointSession | None) -> None:
        """Refuses a prompt that is far too long, before it is rendered and encoded."""
        limits = self._settings if session is None else session
        max_characters = limits.max_prompt_tokens * MAX_CHARACTERS_PER_TOKEN
        fields = [body.get("messages"), body.get("tools"), body.get("prompt")]
        characters = count_characters(fields)
        if characters > max_characters:
            raise RequestError(
                f"a prompt of {characters} characters; at most {MAX_CHARACTERS_PER_TOKEN} for each "
                f"token of config.sampling.max_prompt_tokens={limits.max_prompt_tokens}",
                code="context_length_exceeded",
            )

    def _read_and_encode(
        self, body: dict[str, Any], session: EndpointSession | None, is_chat: bool
    ) -> PolicyCall:
        """Reads a request and encodes its prompt, in the encoder's thread."""
        policy_request = self._read_request(body, session, is_chat)
        return PolicyCall(body, policy_request, self._encode_prompt(policy_request, session))

    def _read_request(
        self, body: dict[str, Any], session: EndpointSession | None, is_chat: bool
    ) -> PolicyRequest:
        sampling = self._settings.sampling if session is None else session.sampling
        recorded = session is not None
        if not is_chat:
            return read_completion_request(body, sampling, recorded=recorded)
        sampled_texts = {} if session is None else session.sampled_texts
        return read_chat_request(
            body, self._tokenizer, sampling, recorded=recorded, sampled_texts=sampled_texts
        )

    def _encode_prompt(
        self, policy_request: PolicyRequest, session: EndpointSession | None
    ) -> list[int]:
        prompt = policy_request.prompt
        if not isinstance(prompt, str):
            tokens = list(prompt)
        elif session is not None:
            tokens = session.prompt_tokens(prompt, self._tokenizer, is_chat=policy_request.chat)
        elif policy_request.chat:
            tokens = self._tokenizer.encode(prompt)
        else:
            tokens = self._tokenizer.encode_plain(prompt)
        limits = self._settings if session is None else session
        if len(tokens) > limits.max_prompt_tokens:
            limit = f"config.sampling.max_prompt_tokens={limits.max_prompt_tokens}"
            raise RequestError(
                f"a prompt of {len(tokens)} tokens; at most {limit}", code="context_length_exceeded"
            )
        return tokens
