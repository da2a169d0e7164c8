"""What a request asks for: a field that would change the response is honoured or refused; unknown fields are ignored.

Calls of a session are learnt from, so they are drawn as the run says: a request whose temperature, top_p, top_k or seed
is another one is refused, never changed in silence.
"""

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from gigpo_jax.endpoint.tools import as_sampled
from gigpo_jax.errors import InputError
from gigpo_jax.models.tokenizer import Tokenizer
from gigpo_jax.sampling.base import SamplingParams, request_key

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
MAX_CHOICES = 16
MAX_STOPS = 16
MAX_STOP_CHARACTERS = 200
_SECRET = 1 << 62
_MOST = 2**31 - 1  # an engine's whole numbers have 32 bits
# Fields that would change the response, and the values with which they change nothing.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "add_generation_prompt": (True,),
    "allowed_token_ids": (),
    "bad_words": ([],),
    "best_of": (1,),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "echo": (False,),
    "frequency_penalty": (0,),
    "function_call": ("auto", "none"),
    "functions": ([],),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "ignore_eos": (False,),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1,),
    "logit_bias": ({},),
    "min_p": (0,),
    "min_tokens": (0,),
    "modalities": (["text"],),
    "parallel_tool_calls": (True,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "skip_special_tokens": (True,),
    "stop_token_ids": ([],),
    "structured_outputs": (),
    "suffix": ("",),
    "tool_choice": ("auto", "none"),
    "top_logprobs": (0,),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
}


class Refused(Exception):
    """A request that gets an error; the text is for the client.

    Attributes:
      status: of HTTP.
      code: a short name of the reason, or None.
      param: the field that is wrong, or None.
    """

    def __init__(self, message: str, *, status: int = 400, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.param = status, code, param

    def as_json(self) -> dict[str, Any]:
        """The body of the answer, as OpenAI's."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


@dataclass(frozen=True)
class Asked:
    """A request for responses.

    Attributes:
      chat: whether it came as messages.
      prompt: the text with its template, or token ids.
      observation: text of the newest message that the policy did not write.
      sampling: how responses are drawn; the key is that of the first one.
      choices: responses.
      cut: strings of `sampling.stop_strings` that are not part of the answer's text.
      logprobs: whether the answer has log-probabilities.
      stream: whether the answer is a stream of events.
      usage: whether such a stream ends with the numbers of tokens.
      messages: of a chat, as its template reads them.
      tools: names of the tools that responses may call.
    """

    chat: bool
    prompt: str | tuple[int, ...]
    observation: str
    sampling: SamplingParams
    choices: int
    cut: tuple[str, ...]
    logprobs: bool
    stream: bool
    usage: bool
    messages: tuple[dict[str, Any], ...] = ()
    tools: tuple[str, ...] = ()


def read_chat(
    body: Mapping[str, Any],
    tokenizer: Tokenizer,
    base: SamplingParams,
    *,
    recorded: bool,
    responses: Mapping[bytes, str],
) -> Asked:
    """Reads the body of /v1/chat/completions.

    Args:
      body: parsed JSON.
      tokenizer: with the chat template.
      base: how the run draws responses; what a request leaves out.
      recorded: whether the call is of a session.
      responses: of the session, as for `tools.as_sampled`.

    Raises:
      Refused: a field is wrong or cannot be honoured.
    """
    messages = [_message(message, number) for number, message in enumerate(_field(body, "messages", list, []))]
    if not messages:
        raise Refused("messages: at least one is needed", param="messages")
    tools = _field(body, "tools", list, [])
    names = tuple(_tool(tool, number) for number, tool in enumerate(tools))
    if body.get("tool_choice") == "none":
        tools, names = [], ()
    try:
        prompt = tokenizer.chat_text(as_sampled(messages, responses), tools)
    except (InputError, RecursionError) as err:
        raise Refused(str(err), param="messages") from err
    others = [message["content"] for message in messages if message["role"] != "assistant"]
    logprobs = _field(body, "logprobs", bool, False)
    observation = others[-1] if others else ""
    asked = _asked(body, prompt, observation, base, chat=True, recorded=recorded, logprobs=logprobs)
    return replace(asked, messages=tuple(messages), tools=names)


def read_completion(body: Mapping[str, Any], base: SamplingParams, *, recorded: bool) -> Asked:
    """Reads the body of /v1/completions; arguments and errors as of `read_chat`."""
    prompt = body.get("prompt")
    if isinstance(prompt, list) and prompt and all(type(token) is int for token in prompt):
        prompt = tuple(prompt)
    elif not (isinstance(prompt, str) and prompt):
        raise Refused("prompt: must be one text that is not empty, or the token ids of one", param="prompt")
    if _field(body, "logprobs", int, 0):
        raise Refused("logprobs: only 0; there are no log-probabilities of other tokens", param="logprobs")
    observation = prompt if isinstance(prompt, str) else ""
    logprobs = body.get("logprobs") is not None
    return _asked(body, prompt, observation, base, chat=False, recorded=recorded, logprobs=logprobs)


def read_outcome(body: Mapping[str, Any], calls: int, largest: float) -> dict[str, Any]:
    """Reads the body of /v1/reward: the fields of `sessions.Outcome`.

    Args:
      body: parsed JSON.
      calls: recorded so far, at least 1.
      largest: absolute value of a reward.
    """
    given = body.get("reward")
    rewards = given if isinstance(given, list) else [*[0.0] * (calls - 1), given]
    if not all(isinstance(x, int | float) and not isinstance(x, bool) and abs(x) <= largest for x in rewards):
        raise Refused(f"reward: must be a number from {-largest:g} to {largest:g}, or a list of them", param="reward")
    if len(rewards) != calls:
        raise Refused(f"reward: {len(rewards)} rewards for {calls} recorded calls", param="reward")
    won = _field(body, "won", bool, sum(rewards) > 0)
    score = _number(body, "score", float(won))
    if not 0 <= score <= 1:
        raise Refused(f"score={score}: must be from 0 to 1", param="score")
    return {"rewards": tuple(map(float, rewards)), "won": won, "score": float(score)}


def _message(message: Any, number: int) -> dict[str, Any]:
    """A message whose content is text, and whose calls have parsed arguments, as templates read them."""
    where = f"messages[{number}]"
    if not isinstance(message, dict) or message.get("role") not in ROLES:
        raise Refused(f"{where}: must be an object with a role of {', '.join(ROLES)}", param="messages")
    content = message.get("content")
    if isinstance(content, list):
        parts = [part for part in content if isinstance(part, dict) and part.get("type") == "text"]
        texts = [text for part in parts if isinstance(text := part.get("text"), str)]
        if len(texts) < len(content):
            raise Refused(f"{where}: content must be text; pictures and sound are not taken", param="messages")
        content = "".join(texts)
    if not isinstance(content, str | None):
        raise Refused(f"{where}: content must be text", param="messages")
    role = "system" if message["role"] == "developer" else message["role"]
    calls = [_called(call, where) for call in _field(message, "tool_calls", list, [])]
    others = {key: value for key, value in message.items() if key != "tool_calls"}  # a template may ask for the key
    return others | {"role": role, "content": content or ""} | ({"tool_calls": calls} if calls else {})


def _called(call: Any, where: str) -> dict[str, Any]:
    try:
        function = call["function"]
        text = function["arguments"]
        arguments = json.loads(text if text != "" else "{}")
        if isinstance(function["name"], str) and isinstance(arguments, dict):
            return call | {"function": function | {"arguments": arguments}}
    except (KeyError, TypeError, ValueError, RecursionError):
        pass
    fix = "each must have a function with a name, and arguments that are the JSON text of an object"
    raise Refused(f"{where}.tool_calls: {fix}", param="messages")


def _tool(tool: Any, number: int) -> str:
    """The name of a tool."""
    function = tool.get("function") if isinstance(tool, dict) else None
    if not (isinstance(function, dict) and isinstance(name := function.get("name"), str)):
        raise Refused(f'tools[{number}]: must be {{"type": "function", "function": {{"name": ..}}}}', param="tools")
    return name


def _asked(
    body: Mapping[str, Any],
    prompt: str | tuple[int, ...],
    observation: str,
    base: SamplingParams,
    *,
    chat: bool,
    recorded: bool,
    logprobs: bool,
) -> Asked:
    for name, neutral in _NEUTRAL.items():
        if body.get(name) is not None and body[name] not in neutral:
            raise Refused(f"{name}: not supported; leave it out", param=name)
    choices = _field(body, "n", int, 1)
    if not 1 <= choices <= (1 if recorded else MAX_CHOICES):
        most = "1 in a session, whose steps have one response each" if recorded else f"from 1 to {MAX_CHOICES}"
        raise Refused(f"n={choices}: must be {most}", param="n")
    stop = body.get("stop") or []
    stop = [stop] if isinstance(stop, str) else stop
    fits = isinstance(stop, list) and len(stop) <= MAX_STOPS and all(isinstance(text, str) for text in stop)
    if not fits or not all(0 < len(text) <= MAX_STOP_CHARACTERS and _is_unicode(text) for text in stop):
        most = f"at most {MAX_STOPS} of them, of 1 to {MAX_STOP_CHARACTERS} characters each"
        raise Refused(f"stop: must be a text or {most}", param="stop")
    if isinstance(prompt, str) and not _is_unicode(prompt):
        raise Refused("the prompt has half of a surrogate pair, which is no character")
    options = _field(body, "stream_options", dict, {})
    return Asked(
        chat=chat,
        prompt=prompt,
        observation=observation,
        sampling=_sampling(body, base, tuple(stop), recorded),
        choices=choices,
        cut=tuple(stop),
        logprobs=logprobs,
        stream=_field(body, "stream", bool, False),
        usage=bool(options.get("include_usage")),
    )


def _sampling(body: Mapping[str, Any], base: SamplingParams, stop: tuple[str, ...], recorded: bool) -> SamplingParams:
    given = {name: _number(body, name, getattr(base, name)) for name in ("temperature", "top_p")}
    given["top_k"] = min(_field(body, "top_k", int, base.top_k), _MOST)
    seed = _field(body, "seed", int, None)
    if recorded:
        for name, value in given.items():
            if value != getattr(base, name):
                fix = f"the calls of a session have {getattr(base, name)}, as the run says; leave it out"
                raise Refused(f"{name}={value}: {fix}", param=name)
        if seed is not None:
            raise Refused(f"seed={seed}: the calls of a session have the seed of the run; leave it out", param="seed")
    name = "max_completion_tokens" if body.get("max_completion_tokens") is not None else "max_tokens"
    most = _field(body, name, int, base.max_tokens)
    if not 1 <= most <= base.max_tokens:
        limit = f"must be from 1 to config.sampling.max_response_tokens={base.max_tokens}"
        raise Refused(f"{name}={most}: {limit}", param=name)
    try:
        return replace(
            base,
            temperature=given["temperature"],
            top_p=given["top_p"],
            top_k=given["top_k"],
            max_tokens=most,
            stop_strings=stop or base.stop_strings,
            key=request_key(secrets.randbelow(_SECRET) if seed is None else seed % _SECRET, 0, 0, 0, 0),
        )
    except InputError as err:
        raise Refused(str(err)) from err


def _field(body: Mapping[str, Any], name: str, kind: type, default: Any) -> Any:
    value = body.get(name)
    if value is None:
        return default
    if type(value) is not kind:
        raise Refused(f"{name}: must be of type {kind.__name__}", param=name)
    return value


def _is_unicode(text: str) -> bool:
    """Whether a text has no half of a surrogate pair, which JSON can spell and no tokenizer takes."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _number(body: Mapping[str, Any], name: str, default: Any) -> Any:
    value = body.get(name)
    if value is None:
        return default
    if type(value) not in (int, float) or not abs(value) <= 1e9:
        raise Refused(f"{name}: must be a number", param=name)
    return value
