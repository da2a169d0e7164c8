"""Builders for tests of the pool, and all environments of a pool at once."""

import asyncio
from collections.abc import Awaitable

from gigpo_jax.env_bridge.processes.pool import EnvPool, PooledEnv

EXAMPLE = "gigpo_jax.envs.example.env:TreasureEnv"
FAILING = "tests.env_bridge.failing:"


async def lend_all(pool: EnvPool) -> list[PooledEnv]:
    """Every environment of the pool, reset."""
    lent = [await pool.acquire() for _ in range(pool.size)]
    task = pool.tasks("train")[0]
    await asyncio.gather(*(environment.reset(task) for environment in lent))
    return lent


async def outcomes(calls: list[Awaitable[object]]) -> list[object]:
    return await asyncio.gather(*calls, return_exceptions=True)
