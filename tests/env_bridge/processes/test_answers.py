"""Answers of workers: they come back as they were, and nothing else gets into this process."""

import asyncio
import json
import pickle
import struct
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigpo_jax.env_bridge.processes.answers import decode_value, pack_answer, parse_answer
from gigpo_jax.env_bridge.processes.frames import pack_frame, split_frames
from gigpo_jax.env_bridge.processes.pool import EnvPool
from gigpo_jax.env_bridge.types import IMAGE, EnvError, Observation, StepResult, Task
from tests.env_bridge.processes.pools import FAILING, lend_all
from tests.processes import patience

OBSERVATION = Observation("a drawer", "a drawer", ("open drawer 1",), "find it")
RESULT = StepResult(OBSERVATION, 1.0, False, {"won": False, "score": 0.5})
STEP = 3  # number of the third call: the tasks and a reset come before


def send(value: Any, operation: str) -> Any:
    """The value that the pool gets."""
    (body,) = split_frames(bytearray(pack_answer(1, "ok", value)))
    return decode_value(parse_answer(body), operation)


@given(st.text(st.characters()), st.lists(st.text(), max_size=3), st.floats(-1e6, 1e6))
@settings(deadline=None)
def test_texts_and_numbers_come_back_exactly(text: str, actions: list[str], reward: float) -> None:
    observation = Observation(text.replace(IMAGE, ""), text, tuple(actions), "\ud83d\ude00\x00")
    result = StepResult(observation, reward, True, {"won": True, "score": 1.0, "regret": 2.0})
    assert send(result, "step") == result
    assert send(observation, "reset") == observation
    tasks = [Task(text, "a", "train", "b", "c")]
    assert send(tasks, "tasks") == tasks


def test_images_come_back_and_can_be_written_to() -> None:
    images = (np.arange(36, dtype=np.uint8).reshape(3, 4, 3), np.zeros((1, 2, 3), np.uint8))
    observation = Observation(IMAGE * 2, "s", None, "t", images)
    received = send(StepResult(observation, 0.0, False, {"won": False, "score": 0.0}), "step")
    for image, expected in zip(received.observation.images, images, strict=True):
        np.testing.assert_array_equal(image, expected)
        image[0, 0, 0] = 7


class RunsCode:
    """A pickle that makes a file where it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def write_frame(value: Any, pixels: bytes = b"") -> bytes:
    """A frame with any JSON."""
    text = json.dumps(value).encode()
    return pack_frame(struct.pack("!I", len(text)) + text + pixels)


GOOD = ["a", "a", None, "t", []]
PICTURE = [IMAGE, "a", None, "t", [[1, 1]]]
LOST = {"won": False, "score": 0.0}
FRAMES = {
    "an observation for a step": pack_answer(STEP, "ok", OBSERVATION),
    "a call that nobody made": pack_answer(999, "ok", RESULT),
    "no number": write_frame(["3", "ok", 1]),
    "another kind": write_frame([STEP, "fine", 1]),
    "no fields": write_frame([STEP]),
    "an error without a text": write_frame([STEP, "error", ["text"]]),
    "an error with other fields": write_frame([STEP, "input", {"reason": "x"}]),
    "an error with a terminal's codes": write_frame([STEP, "error", "\x1b[2Jgone"]),
    "an error of two lines": write_frame([STEP, "step", "one\ntwo"]),
    "an error without an end": write_frame([STEP, "error", "a" * 100_000]),
    "a field with a terminal's codes": write_frame(
        [STEP, "input", {"reason": "\x1b[2J", "key": "k", "value": "v", "fix": "f"}]
    ),
    "a reward that is no number": write_frame([STEP, "ok", [GOOD, float("nan"), False, LOST]]),
    "a text that is none": write_frame([STEP, "ok", [["a", 1, None, "t", []], 0.0, False, LOST]]),
    "too few pixels": write_frame([STEP, "ok", [PICTURE, 0.0, False, LOST]], b"12"),
    "too many pixels": write_frame([STEP, "ok", [PICTURE, 0.0, False, LOST]], b"1234"),
    "a deep list": pack_frame(struct.pack("!I", 100_000) + b"[" * 100_000),
    "no JSON": pack_frame(b"\0\0\0\3odd"),
    "a text": b"hello world",
    "a frame without an end": b"\xff\xff\xff\xff",
}


def act(frame: bytes) -> tuple[str, int]:
    """The error of a step that writes a frame to the socket, and the workers replaced so far."""

    async def scenario(pool: EnvPool) -> str:
        (environment,) = await lend_all(pool)
        start = time.monotonic()
        with pytest.raises(EnvError) as caught:
            await environment.step("write " + frame.hex())
        assert time.monotonic() - start < patience(20), "not after the time limit of a step"
        environment.release()
        (environment,) = await lend_all(pool)
        await environment.step("open drawer 1")
        return str(caught.value)

    with EnvPool(FAILING + "FailingEnv", workers=1, envs_per_worker=1, step_timeout_s=60) as pool:
        return asyncio.run(scenario(pool)), pool.replaced


def test_a_worker_cannot_run_code_here(tmp_path: Path) -> None:
    path = tmp_path / "code_ran"
    message, _ = act(pack_frame(pickle.dumps((STEP, "ok", RunsCode(path)))))
    assert not path.exists()
    assert "sent an answer that cannot be read" in message


@pytest.mark.slow
@pytest.mark.parametrize("name", FRAMES)
def test_a_malformed_answer_replaces_the_worker_at_once(name: str) -> None:
    message, replaced = act(FRAMES[name])
    assert "sent an answer that cannot be read" in message
    assert "\n" not in message
    assert len(message) < 400
    assert replaced == 1
