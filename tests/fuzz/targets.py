"""What reads data of others, each as a function of bytes; errors other than its own are findings."""

import asyncio
import contextlib
import gzip
import io
import json
import os
import struct
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import tokenizers

from gigpo_jax.config.saved import read_saved_config
from gigpo_jax.core.errors import InputError
from gigpo_jax.engines.base import Completion, SamplingParams
from gigpo_jax.engines.endpoint.answers import read_reply
from gigpo_jax.engines.endpoint.interfaces import INTERFACES, RequestReader
from gigpo_jax.engines.endpoint.requests import RequestError, read_outcome
from gigpo_jax.engines.endpoint.responses import remember_chat
from gigpo_jax.engines.endpoint.settings import EndpointSettings
from gigpo_jax.engines.endpoint.tools import read_calls
from gigpo_jax.engines.jax_server.server import EngineServer, _read_sessions
from gigpo_jax.engines.remote import protocol
from gigpo_jax.env_bridge.actions import parse_tagged
from gigpo_jax.env_bridge.processes.answers import decode_value, pack_answer, parse_answer
from gigpo_jax.env_bridge.processes.frames import split_frames
from gigpo_jax.env_bridge.react import read_step
from gigpo_jax.env_bridge.types import Observation, StepResult, Task
from gigpo_jax.envs.cards.responses import parse_card_response
from gigpo_jax.envs.search.actions import parse_response
from gigpo_jax.envs.sokoban.prompt import parse_move
from gigpo_jax.envs.tool_calls import ActionError, read_action
from gigpo_jax.methods.hiper.subgoals import read_subgoal
from gigpo_jax.methods.rebel.beliefs import read_belief
from gigpo_jax.models.decoder_config import DecoderConfig
from gigpo_jax.models.files.hf_config import read_config
from gigpo_jax.models.files.safetensors_file import parse_header
from gigpo_jax.models.files.write_config import config_json
from gigpo_jax.models.text.chat_template import ChatTemplate, TemplateError
from gigpo_jax.models.text.continuation import encode_continuation
from gigpo_jax.models.text.token_bytes import TokenBytes
from gigpo_jax.models.text.tokenizer import load_tokenizer
from gigpo_jax.rollout.read_record import read_rollouts
from gigpo_jax.rollout.record import (
    Rollouts,
    SavedEpisode,
    SavedStep,
    write_rollouts,
)
from gigpo_jax.run.checksums import digest
from gigpo_jax.run.restore import restore_newest
from gigpo_jax.run.saved_runs import read_records
from gigpo_jax.tools.import_gguf.command import _write_contents
from gigpo_jax.tools.import_gguf.config import make_config, make_generation_config
from gigpo_jax.tools.import_gguf.reader import GgufFile, Tensor, open_gguf
from gigpo_jax.tools.import_gguf.tensors import list_sources
from gigpo_jax.tools.import_gguf.tokenizer import make_tokenizer, make_tokenizer_config
from tests.engines.endpoint import bigram
from tests.models.shapes import SMALL, VL, VL3
from tests.tools.import_gguf.files import SPECIAL, TEMPLATE, write_gguf

TOOLS = {"look": {"properties": {"n": {"type": ["integer", "null"]}}}, "go": None}
SAMPLING = SamplingParams(temperature=1.0, max_tokens=8, key=(0, 0))
RUN = "run"


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


def parse_object(data: bytes) -> dict[str, Any]:
    """The JSON object of an input that is made of several; {} if it is none."""
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def dump(*values: Any) -> list[bytes]:
    """Inputs from JSON values."""
    return [json.dumps(value).encode() for value in values]


def read_response(data: bytes) -> None:
    """Responses of a model, by all parsers of actions, plans and calls."""
    text = data.decode(errors="replace")
    for parse in (parse_tagged, read_step, parse_move, parse_response, read_subgoal, read_belief):
        parse(text)
    parse_card_response(text, actions=("hit", "stand"))
    for prompt in ("", "<think>\n"):
        json.dumps(read_calls(text, TOOLS, prompt), allow_nan=False).encode()
    with contextlib.suppress(ActionError):
        read_action(text, TOOLS)


def seed_responses() -> list[bytes]:
    function = "<function=look>\n<parameter=n>\n3\n</parameter>\n</function>"
    call = '<tool_call>\n{"name": "go", "arguments": {"to": [1, "x"]}}\n</tool_call>'
    texts = (
        "<think>a thought</think><action>go to drawer 1</action>",
        "Thought 1: look\nAction 1: look\nObservation 1: x",
        f"text <tool_call>{function}</tool_call>{call}",
        '{"name": "look", "parameters": {"n": 1}}',
        '<belief>{"a": 1}</belief><decision>SWITCH</decision><subgoal>x</subgoal>',
        '{"tool": "look", "arguments": {"n": 1}}',
        "<think>x</think><search>who?</search><answer>me</answer>",
    )
    return [text.encode() for text in texts]


def read_chat(data: bytes) -> None:
    """Messages and tools for a template of the model, and a template of others."""
    content = parse_object(data)
    if isinstance(content.get("messages"), list):
        tools = content.get("tools") if isinstance(content.get("tools"), list) else []
        text = words().chat_text(content["messages"], tools)
        words().encode(text.encode(errors="replace").decode())
        if isinstance(content.get("template"), str):
            template = ChatTemplate(content["template"], {"bos_token": "<s>"})
            template.render(content["messages"], tools)


def seed_chats() -> list[bytes]:
    call = {"type": "function", "function": {"name": "look", "arguments": {"n": 1}}}
    tool = {"type": "function", "function": {"name": "look", "parameters": {}}}
    messages = [
        {"role": "system", "content": "<|im_end|>"},
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "42"},
    ]
    return dump({"messages": messages, "tools": [tool], "template": TEMPLATE})


def read_safetensors(data: bytes) -> None:
    parse_header(io.BytesIO(data), "file")


def seed_safetensors() -> list[bytes]:
    entries = {
        "__metadata__": {"format": "pt"},
        "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
        "b": {"dtype": "BF16", "shape": [0], "data_offsets": [24, 24]},
        "c": {"dtype": "BOOL", "shape": [], "data_offsets": [24, 25]},
    }
    text = json.dumps(entries).encode()
    return [struct.pack("<Q", len(text)) + text + bytes(25)]


def write_files(data: bytes, folder: str) -> Path:
    """Writes a JSON object of files, whose values are JSON or texts."""
    for name, value in parse_object(data).items():
        if name and name.replace("_", "").replace(".", "").isalnum() and len(name) < 50:
            text = value if isinstance(value, str) else json.dumps(value)
            Path(folder, name).write_text(text, encoding="utf-8", errors="surrogatepass")
    return Path(folder)


def read_tokenizer(data: bytes) -> None:
    """A folder of tokenizer files, and what prompts and responses need of it."""
    with tempfile.TemporaryDirectory() as name:
        tokenizer = load_tokenizer(write_files(data, name))
    ids = tokenizer.encode_plain("Hello 你好 🤖\n")
    tokenizer.decode(ids)
    for token in (-0, 1, *ids[:3]):
        TokenBytes(tokenizer.backend)(token)
    encode_continuation(tokenizer, "next", ids)


def seed_tokenizers() -> list[bytes]:
    letters = {letter: index for index, letter in enumerate("Ġhelo")}
    pieces = [
        ("<unk>", 0.0),
        ("▁", -1.0),
        ("he", -2.0),
        *((f"<0x{b:02X}>", -9.0) for b in range(9)),
    ]
    bpe = tokenizers.Tokenizer(
        tokenizers.models.BPE(vocab=letters | {"he": 5}, merges=[("h", "e")])
    )
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = tokenizers.decoders.ByteLevel()
    unigram = tokenizers.Tokenizer(tokenizers.models.Unigram(pieces, 0, byte_fallback=True))
    unigram.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    unigram.decoder = tokenizers.decoders.Metaspace()
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "[UNK]": 1}, "[UNK]"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "model_max_length": 512,
        "chat_template": TEMPLATE,
        "added_tokens_decoder": {"9": {"content": "<x>", "special": True}},
    }
    folders = []
    for made in (bpe, unigram, words):
        made.add_special_tokens(list(SPECIAL))
        folders.append(
            {
                "tokenizer.json": json.loads(made.to_str()),
                "tokenizer_config.json": settings,
                "generation_config.json": {"eos_token_id": [3, 4], "pad_token_id": 0},
                "config.json": {"eos_token_id": 3},
                "gigpo_jax.json": {"stop_strings": ["\n"]},
                "special_tokens_map.json": {"eos_token": {"content": "<|im_end|>"}},
            }
        )
    return dump(*folders)


def read_hf_config(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as name:
        Path(name, "config.json").write_bytes(data)
        read_config(name)


def seed_configs() -> list[bytes]:
    return dump(*(config_json(config, "float32") for config in (*SMALL.values(), VL, VL3)))


def read_gguf(data: bytes) -> None:
    """A GGUF file: header and list of tensors, then the files that are made of its metadata."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name, "m.gguf")
        path.write_bytes(data)
        # Inputs have no weights.
        os.truncate(path, max(len(data), 1 << 23))
        gguf = open_gguf(path)
        list_sources(gguf, convert_metadata(gguf, Path(name)))
        gguf.data.close()


def convert_metadata(gguf: GgufFile, folder: Path) -> DecoderConfig:
    contents = {
        "config.json": make_config(gguf, "float32"),
        "generation_config.json": make_generation_config(gguf),
        "tokenizer.json": make_tokenizer(gguf),
        "tokenizer_config.json": make_tokenizer_config(gguf),
    }
    return _write_contents(folder, gguf, contents)


def seed_gguf() -> list[bytes]:
    with tempfile.TemporaryDirectory() as name:
        file = write_gguf(Path(name, "m.gguf"))
        whole = file.read_bytes()
        gguf = open_gguf(file)
    return [whole[: min(tensor.start for tensor in gguf.tensors.values())]]


def read_gguf_fields(data: bytes) -> None:
    """The metadata of a GGUF file as JSON, of types that such a file can have."""
    fields = {key: value for key, value in parse_object(data).items() if storable(value)}
    rows = fields.get("tokenizer.ggml.tokens")
    count = len(rows) if isinstance(rows, list) and rows else 1
    tensors = {"token_embd.weight": Tensor("F32", (count, 256), 0, 0)}
    gguf = GgufFile(Path("m.gguf"), fields, tensors, None)  # type: ignore[arg-type]
    with tempfile.TemporaryDirectory() as name:
        convert_metadata(gguf, Path(name))


def storable(value: Any) -> bool:
    """Whether a GGUF file can have a value: texts of Unicode, numbers of 64 bits, lists of a type."""
    if isinstance(value, list):
        return all(map(storable, value)) and len({type(item) for item in value}) < 2
    if isinstance(value, str):
        return "\ud800" not in value
    return isinstance(value, bool | float) or (isinstance(value, int) and abs(value) < 2**63)


def seed_gguf_fields() -> list[bytes]:
    with tempfile.TemporaryDirectory() as name:
        files = [
            write_gguf(Path(name, f"{kind}.gguf"), architecture=kind, split=split)
            for kind, split in (("llama", "smollm"), ("qwen2", "qwen2"))
        ]
        fields = [dict(open_gguf(file).fields) for file in files]
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    pieces = ["<unk>", "<s>", "</s>", *byte_tokens, "▁", "a", "▁a"]
    fields.append(
        fields[0]
        | {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": pieces,
            "tokenizer.ggml.token_type": [2, 3, 3, *[6] * 256, 1, 1, 1],
            "tokenizer.ggml.scores": [0.0] * 259 + [-1.0, -2.0, -3.0],
            "tokenizer.ggml.padding_token_id": 0,
        }
    )
    return dump(*fields)


@cache
def words() -> Any:
    return bigram.tokenizer({bigram.REPLY: {"a": 0.5, "b": 0.5}})


@cache
def readers() -> list[RequestReader]:
    settings = {"host": "127.0.0.1", "port": 0, "key": "key", "model": "policy"}
    limits = {"sampling": SAMPLING, "max_prompt_tokens": 4096, "max_calls": 9}
    return [
        RequestReader(words(), EndpointSettings(**settings, **limits, clamp=clamp))
        for clamp in (False, True)
    ]


def read_request(data: bytes) -> None:
    """Requests of the endpoint's four interfaces, with the answers that repeat their fields."""
    content = parse_object(data)
    if not isinstance(content.get("body"), dict):
        return
    body, interface = content["body"], content.get("interface")
    if interface == "reward":
        read_outcome(body, 2, 1e6)
        return
    if not isinstance(interface, str) or interface not in INTERFACES:
        return
    session = SimpleNamespace(
        chats={"resp_1": [{"role": "user", "content": "x"}]},
        sampled_texts={},
        sampling=SAMPLING,
        max_prompt_tokens=4096,
        prompt_tokens=lambda prompt, tokenizer, is_chat: tokenizer.encode(prompt),
    )
    is_recorded = bool(content.get("session"))
    reader = readers()[bool(content.get("clamp"))]
    call = asyncio.run(reader.read(interface, body, session if is_recorded else None))
    form = reader.make_form(interface, call, body)
    tokens = np.asarray(words().encode('<tool_call>{"name": "look", "arguments": {}}'), np.int32)
    completion = Completion(tokens, np.zeros(len(tokens), np.float32), "stop", 0)
    reply = read_reply(call.request, call.tokens, completion, words())
    if interface == "responses":
        remember_chat(body, call.chat, reply)
    json.dumps(form.answer([reply] * call.request.choices))
    list(form.last_events([reply] * call.request.choices))


def seed_requests() -> list[bytes]:
    user = {"role": "user", "content": [{"type": "text", "text": "hello"}]}
    arguments = json.dumps({"n": 1})
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": arguments}}
    function = {"name": "look", "description": "looks", "parameters": TOOLS["look"]}
    chat = {
        "model": "policy",
        "messages": [
            {"role": "developer", "content": "short"},
            user,
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": "42"},
        ],
        "tools": [{"type": "function", "function": function}],
        "max_tokens": 4,
        "n": 1,
        "stop": ["\n"],
        "logprobs": True,
        "stream": False,
        "stream_options": {"include_usage": True},
        "seed": 3,
        "tool_choice": "auto",
    }
    completion = {"model": "policy", "prompt": "hello", "max_tokens": 4, "top_p": 1, "top_k": -1}
    responses = {
        "model": "policy",
        "instructions": "short",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "hello"}]},
            {"type": "reasoning", "summary": []},
            {"type": "function_call", "call_id": "c", "name": "look", "arguments": arguments},
            {"type": "function_call_output", "call_id": "c", "output": "42"},
        ],
        "tools": [{"type": "function", **function}],
        "include": ["message.output_text.logprobs"],
        "text": {"format": {"type": "text"}},
        "metadata": {"a": "b"},
        "max_output_tokens": 4,
        "previous_response_id": "resp_1",
    }
    messages = {
        "model": "policy",
        "max_tokens": 4,
        "system": [{"type": "text", "text": "short"}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "hello"}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm"},
                    {"type": "tool_use", "id": "c", "name": "look", "input": {"n": 1}},
                ],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c"}]},
        ],
        "tools": [{"name": "look", "description": "looks", "input_schema": TOOLS["look"]}],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": False},
        "stop_sequences": ["\n"],
    }
    bodies = dict(zip(INTERFACES, (chat, completion, responses, messages), strict=True))
    recorded = [
        {"interface": name, "body": {**body, "seed": None}, "session": True, "clamp": True}
        for name, body in bodies.items()
    ]
    del responses["previous_response_id"]
    plain = [{"interface": name, "body": body} for name, body in bodies.items()]
    reward = {"interface": "reward", "body": {"reward": [0, 1.0], "won": True, "score": 0.5}}
    return dump(*plain, *recorded, reward)


def read_answer(data: bytes) -> None:
    """Frames of a worker process."""
    try:
        bodies = split_frames(bytearray(data))
    except ValueError:
        return
    for body in bodies or [data[4:]]:
        for operation in ("start", "tasks", "reset", "step"):
            try:
                decode_value(parse_answer(body), operation)
            # Its caller takes any exception for a wrong answer.
            except Exception as error:
                if isinstance(error, MemoryError):
                    raise


def seed_answers() -> list[bytes]:
    image = np.zeros((2, 3, 3), np.uint8)
    pictured = Observation("a <image>", "a", ("x",), "task", (image,))
    values = (
        pictured,
        StepResult(Observation("a", "b", None, "task"), 1.0, True, {"won": True}),
        [Task("1", "type", "train", "data")],
        7,
    )
    return [pack_answer(1, "ok", value)[4:] for value in values]


def read_engine(data: bytes) -> None:
    """Answers of an engine server, and requests to one."""
    content = parse_object(data)
    kind = content.get("kind")
    value = content.get("value")
    if kind == "generated":
        protocol.read_generated(value, RUN, 8)
        protocol.read_generated(value, RUN, 8, inflight=True)
    elif kind == "vllm":
        protocol.add_entropies(value)
        protocol.read_generated(value, RUN, 8)
    elif kind == "probe":
        protocol.read_probe(value, [1, 2, 3])
    elif kind == "served":
        fixes = {"max_model_len": "more"}
        protocol.check_served("url", value, {"dtype": "float32"}, max_length=9, fixes=fixes)
    elif kind == "request" and isinstance(value, dict):
        server = SimpleNamespace(
            _engine=SimpleNamespace(config=VL),
            _read_images=lambda tokens, fields: EngineServer._read_images(server, tokens, fields),
        )
        EngineServer._read_request(server, value)  # type: ignore[arg-type]
        _read_sessions(value)


def seed_engine() -> list[bytes]:
    choice = {
        "token_ids": [5, 6],
        "logprobs": {"content": [{"token_id": 5, "logprob": -1}, {"token_id": 6, "logprob": -0.5}]},
        "weight_versions": [{"version": "run:3", "start": 0, "end": 2}],
        "finish_reason": "stop",
        "entropies": [0.1, 0.2],
    }
    tops = [
        {"token_id": t, "logprob": -1, "top_logprobs": [{}, {"token_id": t + 1, "logprob": -2}]}
        for t in (5, 6)
    ]
    vllm = {**choice, "logprobs": {"content": tops}}
    del vllm["entropies"]
    sampling = {
        "temperature": 1.0,
        "top_p": 1,
        "top_k": 0,
        "max_tokens": 8,
        "stop_token_ids": [3],
        "stop": ["\n"],
        "key": [1, 2],
        "session": [3, 4],
    }
    request = {"token_ids": [1, 2], "sampling_params": sampling, "ended_sessions": [[1, 2]]}
    picture = {"grid": [2, 2], "patches": ""}
    return dump(
        {"kind": "generated", "value": {"choices": [choice]}},
        {"kind": "vllm", "value": {"choices": [vllm]}},
        {
            "kind": "probe",
            "value": {"prompt_logprobs": [None, {"2": {"logprob": -1}}, {"3": {"logprob": -2}}]},
        },
        {"kind": "served", "value": {"dtype": "float32", "max_model_len": 9}},
        {"kind": "request", "value": request},
        {"kind": "request", "value": {**request, "images": []}},
    ) + dump({"kind": "", "value": {**request, "images": [picture]}})


def read_saved_rollouts(data: bytes) -> None:
    """A file of rollouts from its lines, or from its own bytes."""
    try:
        lines = json.loads(data)
        data = gzip.compress("\n".join(map(json.dumps, lines)).encode(), 1)
    except (ValueError, TypeError, RecursionError):
        pass
    with tempfile.TemporaryDirectory() as name:
        path = Path(name, "iteration_0.jsonl.gz")
        path.write_bytes(data)
        read_rollouts(path)


def seed_rollouts() -> list[bytes]:
    step = SavedStep(
        "p", "r", "a", True, None, "o", "s", 1.0, 0.0, "stop", 0, 3, (4, 5), (-1.0, -2.0)
    )
    episode = SavedEpisode("1", "t", "train", "", 0, 0, True, 1.0, False, "", (step,))
    with tempfile.TemporaryDirectory() as name:
        path = Path(name, "iteration_0.jsonl.gz")
        write_rollouts(path, Rollouts(0, 1.0, (episode,), {4: "a", 5: "b"}))
        data = path.read_bytes()
    return [*dump([json.loads(line) for line in gzip.decompress(data).splitlines()]), data]


def read_run(data: bytes) -> None:
    """Record of a checkpoint, and files of a workdir."""
    content = parse_object(data)
    if "record" in content:
        record = content["record"]
        if isinstance(record, dict) and content.get("signed"):
            record |= {
                "checksum": digest(
                    {key: value for key, value in record.items() if key != "checksum"}
                )
            }
        manager = SimpleNamespace(restore=lambda iteration, args: {"record": record})
        restore_newest(manager, Path("checkpoints"), [3], {})
    with tempfile.TemporaryDirectory() as name:
        folder = write_files(data, name)
        if (folder / "config.json").exists():
            read_saved_config(folder / "config.json")
        read_records(folder)


def seed_runs() -> list[bytes]:
    record = {"number": 3, "record": {"iteration": 3}, "checksums": {"params": "00"}}
    config = {"env": {"name": "example", "options": {"a": 1}}, "rl": {"algorithm": "gigpo"}}
    files = {"config.json": config, "metrics.jsonl": '{"iteration": 0}\n{"iteration": 1}\n'}
    return dump(
        {"record": record, "signed": True, **files}, {"record": record, "signed": 1} | files
    )


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
