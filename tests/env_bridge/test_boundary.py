"""Malformed results of an environment are refused where they enter, each with its field, value and
what is allowed.
"""

import asyncio
import dataclasses
import math
import re
import time
from typing import Any

import numpy as np
import pytest

from gigpo_jax.env_bridge.boundary import (
    MAX_CHARACTERS,
    validate_observation,
    validate_result,
)
from gigpo_jax.env_bridge.processes.pool import EnvPool
from gigpo_jax.env_bridge.task_lists import validate_tasks
from gigpo_jax.env_bridge.types import IMAGE, EnvError, Observation, StepResult, Task
from tests.env_bridge.failing import MALFORMED, PICTURE, OwnTypesEnv
from tests.processes import patience

SEEN = Observation("a drawer", "a drawer", ("open drawer 1",), "find it")
RESULT = StepResult(SEEN, 1.0, False, {"won": False, "score": 0.5})


def test_good_results_pass_and_numbers_of_numpy_become_plain() -> None:
    assert validate_result(RESULT) == RESULT
    info = {"won": np.True_, "score": np.float32(1), "regret": np.int64(2), "page": object()}
    result = validate_result(StepResult(SEEN, np.float32(2), np.True_, info))
    assert result == StepResult(SEEN, 2.0, True, {"won": True, "score": 1.0, "regret": 2.0})
    types = [type(value) for value in (result.reward, result.done, *result.info.values())]
    assert types == [float, bool, bool, float, float]
    assert validate_result(dataclasses.replace(RESULT, reward=-1e6)).reward == -1e6
    longest = dataclasses.replace(SEEN, admissible=None, text="x" * (MAX_CHARACTERS - 15))
    assert validate_result(dataclasses.replace(RESULT, observation=longest)).observation == longest


def test_images_pass_unchanged_with_their_memory_in_one_piece() -> None:
    largest_image = np.zeros((2000, 2000, 3), np.uint8)
    for images in ((), (PICTURE,), (PICTURE[::-1, :, ::-1], PICTURE[:1, :1]), (largest_image,)):
        valid_images = validate_observation(
            dataclasses.replace(SEEN, text=IMAGE * len(images), images=images)
        ).images
        for image in valid_images:
            assert image.flags["C_CONTIGUOUS"]
            assert image.dtype == np.uint8
        assert all(
            np.array_equal(image, expected)
            for image, expected in zip(valid_images, images, strict=True)
        )
    assert (
        validate_observation(dataclasses.replace(SEEN, text=f"a shop that sells {IMAGE}")).images
        == ()
    )


def types_in(value: Any) -> set[type]:
    """The types of a value and of all that it holds."""
    inner = (
        vars(value).values()
        if dataclasses.is_dataclass(value)
        else value
        if type(value) in (tuple, list)
        else ()
    )
    inner = value.values() if isinstance(value, dict) else inner
    return {type(value)}.union(*map(types_in, inner))


def test_subclasses_become_the_plain_types() -> None:
    env = OwnTypesEnv()
    plain = {str, bool, float, tuple, np.ndarray}
    tasks = validate_tasks(env.tasks("train"))
    assert types_in(tasks) == {list, Task, str}
    observation = env.reset(tasks[0])
    assert types_in(validate_observation(observation)) == {Observation, str, tuple, np.ndarray}
    assert validate_observation(observation).text == str.__str__(observation.text)
    assert types_in(validate_result(env.step("look"))) == {StepResult, Observation, dict} | plain


def test_types_that_only_the_worker_can_import_cost_nothing() -> None:
    async def scenario(pool: EnvPool) -> None:
        async with pool.episode() as environment:
            observation = await environment.reset(pool.tasks("train")[0])
            assert type(observation.text) is str
            assert [type(image) for image in observation.images] == [np.ndarray] * 2
            np.testing.assert_array_equal(observation.images[0], PICTURE)
            np.testing.assert_array_equal(observation.images[1], PICTURE[:, ::2])
            assert type(await environment.step("look")) is StepResult
        assert pool.replaced == 0

    with EnvPool("tests.env_bridge.failing:OwnTypesEnv", workers=1, envs_per_worker=1) as pool:
        asyncio.run(scenario(pool))


@pytest.mark.parametrize("kind", MALFORMED)
def test_a_malformed_result_is_refused(kind: str) -> None:
    with pytest.raises(EnvError) as caught:
        validate_result(MALFORMED[kind](RESULT))
    field = kind.split()[0]
    assert re.match(
        rf"malformed result: .*{field}.* is .+; allowed: ", str(caught.value), re.DOTALL
    )
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("tasks", [[{"id": "a"}], [Task("a", "b", None)], ["a"]])  # type: ignore[arg-type]
def test_malformed_tasks_are_refused(tasks: list[Any]) -> None:
    with pytest.raises(EnvError, match="malformed task "):
        validate_tasks(tasks)


def test_in_a_run_each_costs_its_episode_and_nothing_else() -> None:
    async def scenario(pool: EnvPool) -> None:
        task = pool.tasks("train")[0]
        for kind in MALFORMED:
            async with pool.episode() as environment:
                await environment.reset(task)
                started = time.monotonic()
                with pytest.raises(EnvError, match="malformed result"):
                    await environment.step(kind)
                assert time.monotonic() - started < patience(5), "100 MB are not sent first"
        for kind in ("observation", "text"):
            async with pool.episode() as environment:
                with pytest.raises(EnvError, match="malformed result"):
                    await environment.reset(dataclasses.replace(task, data=kind))
        async with pool.episode() as environment:
            await environment.reset(task)
            assert not math.isnan((await environment.step("look")).reward)
        assert pool.replaced == 0

    for name in ("MalformedEnv", "MalformedLater"):
        with EnvPool(f"tests.env_bridge.failing:{name}", workers=1, envs_per_worker=1) as pool:
            asyncio.run(scenario(pool))
