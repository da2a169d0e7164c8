"""Answers of a worker process as data: JSON, followed by the pixels of images.

An answer cannot run code where it is read, whatever an environment writes to its socket, and the
pool validates every value again: the learner sees exactly the types of types.py.
"""

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gigpo_jax.env_bridge.boundary import validate_observation, validate_result
from gigpo_jax.env_bridge.processes.frames import pack_frame
from gigpo_jax.env_bridge.types import Observation, StepResult, Task

_SIZE = struct.Struct("!I")  # of the JSON
_ERROR_FIELDS = {"reason", "key", "value", "fix"}  # of an InputError
_MAX_ERROR_TEXT = 1 << 15  # characters; a worker cuts its texts to fewer (worker.py)


@dataclass(frozen=True)
class Answer:
    """An answer whose value is not decoded yet.

    Attributes:
      number: Number of the call.
      kind: "ok", or the kind of error (worker.py).
      content: JSON value.
      pixels: Bytes of all images, one after the other.
    """

    number: int
    kind: str
    content: Any
    pixels: bytes


def pack_answer(number: int, kind: str, value: Any) -> bytes:
    """Encodes an `Answer` as a frame.

    The value is a process id, tasks, an observation, a result, or the text or fields of an error.
    """
    content = value
    # Outside of the JSON, as they are: base64 would cost a third more bytes, and time.
    images: Sequence[np.ndarray] = ()
    if isinstance(value, Observation):
        content = _encode_observation(value)
        images = value.images
    elif isinstance(value, StepResult):
        observation = _encode_observation(value.observation)
        content = [observation, value.reward, value.done, dict(value.info)]
        images = value.observation.images
    elif isinstance(value, list):
        # Without `environment`: the run sets that label (types.py).
        content = [[task.id, task.type, task.split, task.data, task.answer] for task in value]
    text = json.dumps([number, kind, content], ensure_ascii=False, separators=(",", ":"))
    # Environments may emit lone surrogates; plain UTF-8 refuses them.
    data = text.encode("utf-8", "surrogatepass")
    pixels = b"".join(image.tobytes() for image in images)
    return pack_frame(_SIZE.pack(len(data)) + data + pixels)


def _encode_observation(observation: Observation) -> list[Any]:
    shapes = [image.shape[:2] for image in observation.images]
    return [
        observation.text,
        observation.anchor,
        observation.admissible,
        observation.task,
        shapes,
    ]


def parse_answer(body: bytes) -> Answer:
    """Reads the number and kind of an answer; may raise an exception of any type."""
    (size,) = _SIZE.unpack_from(body)
    text = body[_SIZE.size : _SIZE.size + size].decode("utf-8", "surrogatepass")
    number, kind, content = json.loads(text)
    # `type`, because True is an int too and would be the number 1.
    if type(number) is not int or kind not in ("ok", "input", "error", "step"):
        raise ValueError(f"number {number!r:.40} and kind {kind!r:.40}")
    return Answer(number, kind, content, body[_SIZE.size + size :])


def decode_value(answer: Answer, operation: str) -> Any:
    """Decodes and validates the value of an answer; may raise an exception of any type.

    Args:
      answer: The answer.
      operation: Operation of its call, which decides the type of the value.
    """
    content = answer.content
    # Errors first: their form does not depend on the operation.
    if answer.kind == "input":
        if content.keys() != _ERROR_FIELDS or not all(map(_is_line, content.values())):
            raise ValueError("fields of an error")
        return content
    if answer.kind != "ok":
        if not _is_line(content):
            raise ValueError("text of an error")
        return content
    if operation == "start":
        if type(content) is not int:
            raise ValueError("process id")
        return content
    if operation == "tasks":
        from gigpo_jax.env_bridge.task_lists import validate_tasks

        return validate_tasks([Task(*fields) for fields in content])
    if operation == "reset":
        return validate_observation(_decode_observation(content, answer.pixels))
    observation, reward, done, info = content
    result = StepResult(_decode_observation(observation, answer.pixels), reward, done, info)
    return validate_result(result)


def _is_line(value: Any) -> bool:
    # A worker escapes the texts of errors. Control characters come from an environment that writes
    # to the socket, and could change the terminal that shows them.
    return isinstance(value, str) and value.isprintable() and len(value) <= _MAX_ERROR_TEXT


def _decode_observation(content: Any, pixels: bytes) -> Observation:
    text, anchor, admissible, task, shapes = content
    if isinstance(admissible, list):
        admissible = tuple(admissible)
    if not shapes and not pixels:
        return Observation(text, anchor, admissible, task)
    from gigpo_jax.env_bridge.processes.pixels import decode_images

    return Observation(text, anchor, admissible, task, decode_images(shapes, pixels))
