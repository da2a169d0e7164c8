"""The episodes of one task while they are played."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from gigpo_jax.env_bridge.types import Task
from gigpo_jax.trajectory import Trajectory


@dataclass(eq=False)
class Group:
    """The episodes of one task while they are played.

    Attributes:
      number: Group number; part of every request's key.
      task: Task of all episodes.
      episodes: Trials of each member in order; () until the member has ended.
      coroutines: Running coroutine of each member.
      shared: What parts of its episodes share, by name.
    """

    number: int
    task: Task
    episodes: list[tuple[Trajectory, ...]]
    coroutines: list[asyncio.Task[None]] = field(default_factory=list)
    shared: dict[Any, Any] = field(default_factory=dict)
