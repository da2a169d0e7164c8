"""Malformed results of an environment are refused where they enter, each with its field, value and what is allowed."""

import asyncio
import dataclasses
import math
import re
import time
from typing import Any

import numpy as np
import pytest

from gigpo_jax.env_bridge.boundary import MAX_CHARACTERS, checked_result, checked_tasks
from gigpo_jax.env_bridge.pool import EnvPool
from gigpo_jax.env_bridge.types import EnvError, Observation, StepResult, Task
from tests.env_bridge.failing import MALFORMED

SEEN = Observation("a drawer", "a drawer", ("open drawer 1",), "find it")
RESULT = StepResult(SEEN, 1.0, False, {"won": False, "score": 0.5})


def test_good_results_pass_and_numbers_of_numpy_become_plain() -> None:
    assert checked_result(RESULT) == RESULT
    info = {"won": np.True_, "score": np.float32(1), "regret": np.int64(2), "page": object()}
    found = checked_result(StepResult(SEEN, np.float32(2), np.True_, info))
    assert found == StepResult(SEEN, 2.0, True, {"won": True, "score": 1.0, "regret": 2.0})
    types = [type(value) for value in (found.reward, found.done, *found.info.values())]
    assert types == [float, bool, bool, float, float]
    assert checked_result(dataclasses.replace(RESULT, reward=-1e6)).reward == -1e6
    longest = dataclasses.replace(SEEN, admissible=None, text="x" * (MAX_CHARACTERS - 15))
    assert checked_result(dataclasses.replace(RESULT, observation=longest)).observation is longest


@pytest.mark.parametrize("kind", MALFORMED)
def test_a_malformed_result_is_refused(kind: str) -> None:
    with pytest.raises(EnvError) as caught:
        checked_result(MALFORMED[kind](RESULT))
    field = kind.split()[0]
    assert re.match(rf"malformed result: .*{field}.* is .+; allowed: ", str(caught.value), re.DOTALL)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("tasks", [[{"id": "a"}], [Task("a", "b", None)], ["a"]])  # type: ignore[arg-type]
def test_malformed_tasks_are_refused(tasks: list[Any]) -> None:
    with pytest.raises(EnvError, match="malformed task "):
        checked_tasks(tasks)


def test_in_a_run_each_costs_its_episode_and_nothing_else() -> None:
    async def scenario(pool: EnvPool) -> None:
        task = pool.tasks("train")[0]
        for kind in MALFORMED:
            async with pool.episode() as environment:
                await environment.reset(task)
                started = time.monotonic()
                with pytest.raises(EnvError, match="malformed result"):
                    await environment.step(kind)
                assert time.monotonic() - started < 5, "100 MB are not sent first"
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
