"""Answers of worker processes and engine servers, and requests to engine servers."""

from types import SimpleNamespace

import numpy as np

from gigpo_jax.engines.jax_server.server import EngineServer, _read_sessions
from gigpo_jax.engines.remote import protocol
from gigpo_jax.env_bridge.processes.answers import decode_value, pack_answer, parse_answer
from gigpo_jax.env_bridge.processes.frames import split_frames
from gigpo_jax.env_bridge.types import Observation, StepResult, Task
from tests.fuzz.inputs import dump, parse_object
from tests.models.shapes import VL

RUN = "run"


def read_answer(data: bytes) -> list[object]:
    """Values in the frames of a worker process, and in an input as the body of one frame."""
    try:
        bodies = split_frames(bytearray(data))
    except ValueError:
        bodies = []
    values = []
    for body in (*bodies, data):
        for operation in ("start", "tasks", "reset", "step"):
            try:
                values.append(decode_value(parse_answer(body), operation))
            # Its caller takes any exception for a wrong answer.
            except Exception as error:
                if isinstance(error, MemoryError):
                    raise
    return values


def seed_answers() -> list[bytes]:
    image = np.zeros((2, 3, 3), np.uint8)
    pictured = Observation("a <image>", "a", ("x",), "task", (image,))
    values = (
        pictured,
        StepResult(Observation("a", "b", None, "task"), 1.0, True, {"won": True, "score": 1.0}),
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
