"""What reads data of others, each as a function of bytes; errors other than its own are findings."""

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gigpo_jax.core.errors import InputError
from gigpo_jax.engines.endpoint.requests import RequestError
from gigpo_jax.engines.remote import protocol
from gigpo_jax.models.text.chat_template import TemplateError
from tests.fuzz.endpoint import read_chat, read_request, seed_chats, seed_requests
from tests.fuzz.model_files import (
    read_gguf,
    read_gguf_fields,
    read_hf_config,
    read_safetensors,
    read_tokenizer,
    seed_configs,
    seed_gguf,
    seed_gguf_fields,
    seed_safetensors,
    seed_tokenizers,
)
from tests.fuzz.responses import read_response, seed_responses
from tests.fuzz.saved_runs import read_run, read_saved_rollouts, seed_rollouts, seed_runs
from tests.fuzz.servers import read_answer, read_engine, seed_answers, seed_engine


@dataclass(frozen=True)
class Target:
    """A parser.

    Attributes:
      read: Function of an input; may raise `errors` alone.
      seeds: Function that makes inputs, which are valid.
      errors: Errors that say what is wrong with an input.
      prefix: Length in front of the JSON of inputs.
    """

    read: Callable[[bytes], object]
    seeds: Callable[[], list[bytes]]
    errors: tuple[type[Exception], ...] = (InputError,)
    prefix: struct.Struct | None = None


TARGETS: Mapping[str, Target] = {
    "responses": Target(read_response, seed_responses, ()),
    "chats": Target(read_chat, seed_chats, (InputError, TemplateError)),
    "safetensors": Target(read_safetensors, seed_safetensors, prefix=struct.Struct("<Q")),
    "tokenizers": Target(read_tokenizer, seed_tokenizers),
    "configs": Target(read_hf_config, seed_configs),
    "gguf": Target(read_gguf, seed_gguf),
    "gguf_fields": Target(read_gguf_fields, seed_gguf_fields),
    "requests": Target(read_request, seed_requests, (RequestError,)),
    "answers": Target(read_answer, seed_answers, prefix=struct.Struct("!I")),
    "engine": Target(read_engine, seed_engine, (protocol.ServerFault, InputError, RequestError)),
    "rollouts": Target(read_saved_rollouts, seed_rollouts),
    "runs": Target(read_run, seed_runs),
}

if __name__ == "__main__":
    print(*TARGETS)
