"""What the tests of the pool share: its builders, all its environments at once, and whether processes run."""

import asyncio
import pathlib
import time
from collections.abc import Awaitable

from gigpo_jax.env_bridge.pool import EnvPool, PooledEnv

EXAMPLE = "gigpo_jax.envs.example.env:TreasureEnv"
FAILING = "tests.env_bridge.failing:"


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone(pids: list[int] | tuple[int, ...], within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(map(alive, pids))


async def lend_all(pool: EnvPool) -> list[PooledEnv]:
    """Every environment of the pool, reset."""
    lent = [await pool.acquire() for _ in range(pool.size)]
    task = pool.tasks("train")[0]
    await asyncio.gather(*(environment.reset(task) for environment in lent))
    return lent


async def outcomes(calls: list[Awaitable[object]]) -> list[object]:
    return await asyncio.gather(*calls, return_exceptions=True)
