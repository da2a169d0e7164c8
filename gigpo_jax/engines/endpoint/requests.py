"""Reads the bodies of requests.

A field that would change the response is honoured or refused; unknown fields are ignored. The
learner trains on the calls of a session, so they have the run's sampling settings: a request with
another temperature, top_p, top_k or seed is refused, never changed in silence.
"""

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gigpo_jax.core.errors import InputError
from gigpo_jax.engines.base import SamplingParams, request_key
from gigpo_jax.engines.endpoint.tools import restore_sampled_calls
from gigpo_jax.models.text.chat_messages import chat_text
from gigpo_jax.models.text.tokenizer import Tokenizer

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
MAX_CHOICES = 16
MAX_STOPS = 16
MAX_STOP_CHARACTERS = 200
# `request_key` packs signed numbers of 64 bits; an integer in JSON may be of any size.
_SEEDS = 1 << 62
_MAX_INT = 2**31 - 1  # the integers of an engine have 32 bits
# Fields that would change the response, and their values without effect; with () the field is
# always refused.
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


class RequestError(Exception):
    """A request that cannot be served, with a text for the client.

    Attributes:
      status: HTTP status.
      code: Short name of the reason, or None.
      param: Field that is wrong, or None.
    """

    def __init__(
        self, message: str, *, status: int = 400, code: str | None = None, param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param

    def as_json(self) -> dict[str, Any]:
        """Returns the body of the answer in OpenAI's form."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        return {
            "error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}
        }


@dataclass(frozen=True)
class PolicyRequest:
    """A request for responses of the policy.

    Attributes:
      chat: Whether it came as messages.
      prompt: Text with its template, or token ids.
      observation: Text of the newest message that the policy did not write.
      sampling: Sampling settings; the key is the key of the first choice.
      choices: Number of responses.
      cut: Strings of `sampling.stop_strings` that are not part of the answer's text.
      logprobs: Whether the answer has log-probabilities.
      stream: Whether the answer is a stream of events.
      usage: Whether such a stream ends with the numbers of tokens.
      messages: Messages of a chat, as its template reads them.
      tools: JSON schema of the arguments of each tool that responses may call, by its name.
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
    tools: Mapping[str, Any] = field(default_factory=dict)


def read_chat_request(
    body: Mapping[str, Any],
    tokenizer: Tokenizer,
    base: SamplingParams,
    *,
    recorded: bool,
    sampled_texts: Mapping[bytes, str],
) -> PolicyRequest:
    """Reads the body of /v1/chat/completions.

    Args:
      body: Parsed JSON.
      tokenizer: Tokenizer with the chat template.
      base: Sampling settings of the run, for fields that a request leaves out.
      recorded: Whether the call belongs to a session.
      sampled_texts: Responses of the session, as for `tools.restore_sampled_calls`.

    Raises:
      RequestError: A field is wrong or cannot be honoured.
    """
    messages = []
    for index, raw_message in enumerate(_read_field(body, "messages", list, [])):
        messages.append(_read_message(raw_message, index))
    if not messages:
        raise RequestError("messages: at least one is needed", param="messages")
    tools = _read_field(body, "tools", list, [])
    schemas = dict(_read_tool(tool, index) for index, tool in enumerate(tools))
    if body.get("tool_choice") == "none":
        tools = []
        schemas = {}
    try:
        prompt = chat_text(tokenizer, restore_sampled_calls(messages, sampled_texts), tools)
    except (InputError, RecursionError) as err:
        raise RequestError(str(err), param="messages") from err
    observation = ""
    # The newest such message stays. It is the anchor state, unless a header names another.
    for message in messages:
        if message["role"] != "assistant":
            observation = message["content"]
    request = _read_settings(
        body,
        prompt,
        observation,
        base,
        chat=True,
        recorded=recorded,
        logprobs=_read_field(body, "logprobs", bool, False),
    )
    # Messages as they were sent: `record_call` hashes the chat that the next request repeats.
    return replace(request, messages=tuple(messages), tools=schemas)


def read_completion_request(
    body: Mapping[str, Any], base: SamplingParams, *, recorded: bool
) -> PolicyRequest:
    """Reads the body of /v1/completions, with the arguments and errors of `read_chat_request`."""
    prompt = body.get("prompt")
    if isinstance(prompt, list) and prompt and all(type(token) is int for token in prompt):
        prompt = tuple(prompt)
    elif not (isinstance(prompt, str) and prompt):
        raise RequestError(
            "prompt: must be one text that is not empty, or the token ids of one", param="prompt"
        )
    if _read_field(body, "logprobs", int, 0):
        raise RequestError(
            "logprobs: only 0; there are no log-probabilities of other tokens", param="logprobs"
        )
    observation = prompt if isinstance(prompt, str) else ""
    logprobs = body.get("logprobs") is not None
    return _read_settings(
        body, prompt, observation, base, chat=False, recorded=recorded, logprobs=logprobs
    )


def read_outcome(
    body: Mapping[str, Any], calls: int, max_reward: float, repeats: str = ""
) -> dict[str, Any]:
    """Reads the body of /v1/reward: the fields of `sessions.SessionOutcome`.

    Args:
      body: Parsed JSON.
      calls: Number of recorded calls, at least 1.
      max_reward: Largest absolute value of a reward.
      repeats: Recorded calls that may be repetitions, for the message about a wrong number.
    """
    rewards = body.get("reward")
    if not isinstance(rewards, list):
        # One number is the reward of the last call.
        rewards = [*[0.0] * (calls - 1), rewards]
    for reward in rewards:
        # `true` is an int of Python. NaN fails the comparison below.
        is_number = isinstance(reward, int | float) and not isinstance(reward, bool)
        if not (is_number and abs(reward) <= max_reward):
            raise RequestError(
                f"reward: must be a number from {-max_reward:g} to {max_reward:g}, "
                "or a list of them",
                param="reward",
            )
    if len(rewards) != calls:
        hint = f" ({repeats}: repeated requests need an Idempotency-Key)" if repeats else ""
        raise RequestError(
            f"reward: {len(rewards)} rewards for {calls} recorded calls{hint}", param="reward"
        )
    won = _read_field(body, "won", bool, sum(rewards) > 0)
    score = _read_number_field(body, "score", float(won))
    if not 0 <= score <= 1:
        raise RequestError(f"score={score}: must be from 0 to 1", param="score")
    return {"rewards": tuple(map(float, rewards)), "won": won, "score": float(score)}


def count_characters(value: Any) -> int:
    """Counts the characters of all texts and keys in a JSON value."""
    characters = 0
    # A stack, because a recursive function could exceed Python's limit in nested JSON.
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            characters += len(item)
        elif isinstance(item, list):
            pending += item
        elif isinstance(item, dict):
            pending += item.keys()
            pending += item.values()
    return characters


def _read_message(message: Any, index: int) -> dict[str, Any]:
    """Converts a message to the form of templates: text content, and parsed arguments of calls."""
    label = f"messages[{index}]"
    if not isinstance(message, dict) or message.get("role") not in ROLES:
        raise RequestError(
            f"{label}: must be an object with a role of {', '.join(ROLES)}", param="messages"
        )
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(_read_text_item(item, label) for item in content)
    if not isinstance(content, str | None):
        raise RequestError(f"{label}: content must be text", param="messages")
    calls = [_read_call(call, label) for call in _read_field(message, "tool_calls", list, [])]

    # A template may test whether the key "tool_calls" is there: without calls it is removed.
    converted = {key: value for key, value in message.items() if key != "tool_calls"}
    converted["role"] = "system" if message["role"] == "developer" else message["role"]
    converted["content"] = content or ""
    if calls:
        converted["tool_calls"] = calls
    return converted


def _read_text_item(item: Any, label: str) -> str:
    if isinstance(item, dict) and item.get("type") == "text" and isinstance(item.get("text"), str):
        return item["text"]
    raise RequestError(
        f"{label}: content must be text; pictures and sound are not taken", param="messages"
    )


def _read_call(call: Any, label: str) -> dict[str, Any]:
    try:
        function = call["function"]
        text = function["arguments"]
        arguments = json.loads(text if text != "" else "{}")
        if isinstance(function["name"], str) and isinstance(arguments, dict):
            return call | {"function": function | {"arguments": arguments}}
    except (KeyError, TypeError, ValueError, RecursionError):
        pass
    raise RequestError(
        f"{label}.tool_calls: each must have a function with a name, and arguments that are the "
        "JSON text of an object",
        param="messages",
    )


def _read_tool(tool: Any, index: int) -> tuple[str, Any]:
    """Returns the name of a tool and the schema of its arguments."""
    function = tool.get("function") if isinstance(tool, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(function, dict) or not isinstance(name, str):
        raise RequestError(
            f'tools[{index}]: must be {{"type": "function", "function": {{"name": ..}}}}',
            param="tools",
        )
    return name, function.get("parameters")


def _read_settings(
    body: Mapping[str, Any],
    prompt: str | tuple[int, ...],
    observation: str,
    base: SamplingParams,
    *,
    chat: bool,
    recorded: bool,
    logprobs: bool,
) -> PolicyRequest:
    """Reads the fields that both kinds of requests have."""
    for name, neutral_values in _NEUTRAL.items():
        if body.get(name) is not None and body[name] not in neutral_values:
            raise RequestError(f"{name}: not supported; leave it out", param=name)
    stop = _read_stop(body)
    if isinstance(prompt, str) and not _is_unicode(prompt):
        raise RequestError("the prompt has half of a surrogate pair, which is no character")
    stream_options = _read_field(body, "stream_options", dict, {})
    return PolicyRequest(
        chat=chat,
        prompt=prompt,
        observation=observation,
        sampling=_read_sampling(body, base, stop, recorded),
        choices=_read_choices(body, recorded),
        cut=stop,
        logprobs=logprobs,
        stream=_read_field(body, "stream", bool, False),
        usage=bool(stream_options.get("include_usage")),
    )


def _read_choices(body: Mapping[str, Any], recorded: bool) -> int:
    choices = _read_field(body, "n", int, 1)
    if recorded and choices != 1:
        raise RequestError(
            f"n={choices}: must be 1 in a session, whose steps have one response each", param="n"
        )
    if not 1 <= choices <= MAX_CHOICES:
        raise RequestError(f"n={choices}: must be from 1 to {MAX_CHOICES}", param="n")
    return choices


def _read_stop(body: Mapping[str, Any]) -> tuple[str, ...]:
    stop = body.get("stop") or []
    if isinstance(stop, str):
        stop = [stop]
    is_valid = isinstance(stop, list) and len(stop) <= MAX_STOPS
    if not is_valid or not all(map(_is_stop_string, stop)):
        raise RequestError(
            f"stop: must be a text or at most {MAX_STOPS} of them, of 1 to "
            f"{MAX_STOP_CHARACTERS} characters each",
            param="stop",
        )
    return tuple(stop)


def _is_stop_string(text: Any) -> bool:
    return isinstance(text, str) and 0 < len(text) <= MAX_STOP_CHARACTERS and _is_unicode(text)


def _read_sampling(
    body: Mapping[str, Any], base: SamplingParams, stop: tuple[str, ...], recorded: bool
) -> SamplingParams:
    values = {
        "temperature": _read_number_field(body, "temperature", base.temperature),
        "top_p": _read_number_field(body, "top_p", base.top_p),
        "top_k": min(_read_field(body, "top_k", int, base.top_k), _MAX_INT),
    }
    seed = _read_field(body, "seed", int, None)
    if recorded:
        _check_recorded_settings(values, seed, base)
    name = "max_tokens"
    # OpenAI's newer name of the field counts if a request has both.
    if body.get("max_completion_tokens") is not None:
        name = "max_completion_tokens"
    max_tokens = _read_field(body, name, int, base.max_tokens)
    if not 1 <= max_tokens <= base.max_tokens:
        limit = f"must be from 1 to config.sampling.max_response_tokens={base.max_tokens}"
        raise RequestError(f"{name}={max_tokens}: {limit}", param=name)
    if seed is None:
        # Without a seed, equal requests get different responses, as from OpenAI.
        seed = secrets.randbelow(_SEEDS)
    try:
        return replace(
            base,
            temperature=values["temperature"],
            top_p=values["top_p"],
            top_k=values["top_k"],
            max_tokens=max_tokens,
            stop_strings=stop or base.stop_strings,
            key=request_key(seed % _SEEDS, 0, 0, 0, 0),
        )
    except InputError as err:
        raise RequestError(str(err)) from err


def _check_recorded_settings(
    values: Mapping[str, Any], seed: int | None, base: SamplingParams
) -> None:
    for name, value in values.items():
        run_value = getattr(base, name)
        if value != run_value:
            raise RequestError(
                f"{name}={value}: the calls of a session have {run_value}, as the run says; "
                "leave it out",
                param=name,
            )
    if seed is not None:
        raise RequestError(
            f"seed={seed}: the calls of a session have the seed of the run; leave it out",
            param="seed",
        )


def _read_field(body: Mapping[str, Any], name: str, kind: type, default: Any) -> Any:
    value = body.get(name)
    if value is None:
        return default
    # Not `isinstance`, for which `true` is an int.
    if type(value) is not kind:
        raise RequestError(f"{name}: must be of type {kind.__name__}", param=name)
    return value


def _read_number_field(body: Mapping[str, Any], name: str, default: Any) -> Any:
    value = body.get(name)
    if value is None:
        return default
    if type(value) not in (int, float) or not abs(value) <= 1e9:
        raise RequestError(f"{name}: must be a number", param=name)
    return value


def _is_unicode(text: str) -> bool:
    """Returns whether a text has no half surrogate pair, which JSON can spell."""
    return not any("\ud800" <= character <= "\udfff" for character in text)
