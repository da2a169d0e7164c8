"""The experts of the tokens that slots hold, for a learner that replays them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from gigpo_jax.engines.base import Completion
from gigpo_jax.engines.jax.placement import SLOTS
from gigpo_jax.engines.jax.programs import Programs
from gigpo_jax.engines.request import Request
from gigpo_jax.models.routes import merge_routes

EndedResponse = tuple[int, Request, Completion]  # of a slot


def read_routes(programs: Programs, slots: np.ndarray) -> jax.Array:
    """Reads the experts of the tokens of slots.

    Args:
      programs: Programs of the engine.
      slots: [partitions] i32, one slot of each partition.

    Returns:
      [partitions, C, R], R = L' k: k experts for each layer that has any.
    """

    def read_step(
        _params: Any, cache: Any, state: Any, slots: jax.Array
    ) -> tuple[Any, Any, jax.Array]:
        return cache, state, merge_routes(cache.routes[:, slots, 0])

    return programs.run_step(("routes",), read_step, {}, slots, (SLOTS,))


def read_slot_routes(
    programs: Programs, ended: Sequence[EndedResponse], partitions: int, slots: int
) -> list[EndedResponse]:
    """Adds to responses the experts of their tokens, which their slots still hold."""
    partition_slots = slots // partitions
    remaining: list[list[EndedResponse]] = [[] for _ in range(partitions)]
    for ended_response in ended:
        remaining[ended_response[0] // partition_slots].append(ended_response)
    calls = []
    # A slot of each partition a call. All calls come before the first result is fetched.
    while any(remaining):
        batch = [responses.pop() if responses else None for responses in remaining]
        batch_slots = [response[0] % partition_slots if response else 0 for response in batch]
        calls.append((batch, read_routes(programs, np.array(batch_slots, np.int32))))
    completed = []
    for batch, routes in calls:
        for response, slot_routes in zip(batch, np.asarray(routes), strict=True):
            if response is None:
                continue
            slot, request, completion = response
            # Nothing was predicted from the last token: it went through no expert.
            length = request.prompt.size + completion.tokens.size - 1
            # A view would keep the routes of all partitions, to the cache's end, in memory.
            request_routes = slot_routes[:length].copy()
            completed.append((slot, request, replace(completion, routes=request_routes)))
    return completed
