"""What slots have at the end of a prompt alone: states and windows, which no earlier token has.

A prompt that begins with all whole chunks of another one continues it there.
"""

from collections.abc import Iterable
from typing import Any

import jax
import numpy as np

from gigpo_jax.engines.jax.placement import SLOTS
from gigpo_jax.engines.jax.prefixes import Prefill
from gigpo_jax.engines.jax.programs import EngineSettings, Programs
from gigpo_jax.engines.request import Request
from gigpo_jax.models.window_cache import copy_ends, window_length

ENDS = 8  # slots of a partition that a device call copies


class PrefixEnds:
    """The ends of prompts in the slots of an engine whose model has layers with states or windows.

    Attributes:
      are_only: Whether a slot has states and windows at the end of its prompt alone.
    """

    def __init__(self, programs: Programs, settings: EngineSettings, partitions: int) -> None:
        """Finds what the slots of the settings have room for."""
        config = programs.config
        self._programs = programs
        self._partitions = partitions
        self._partition_slots = settings.slots // partitions
        self._has_states = config.delta is not None
        self._longest_response = settings.max_length
        self.are_only = self._has_states
        length = window_length(
            config.sliding_window, settings.capacity, settings.prefill_chunk, settings.rows[-1]
        )
        if config.num_window_layers and length < settings.capacity:
            self.are_only = True
            self._longest_response = length - config.sliding_window - settings.prefill_chunk

    def outlasts(self, request: Request) -> bool:
        """Whether no response to a request overwrites the windows before it."""
        return request.params.max_tokens <= self._longest_response

    def can_continue(self, request: Request, response_tokens: int) -> bool:
        """Whether a slot can be continued behind a response."""
        # Behind a stop string the device went on, and a state cannot go back.
        return not self._has_states or response_tokens == len(request.tokens)

    def copy(self, prefills: Iterable[Prefill]) -> None:
        """Copies the ends that prompts continue."""
        pairs: list[list[tuple[int, int]]] = [[] for _ in range(self._partitions)]
        for prefill in prefills:
            if prefill.source is not None:
                partition, slot = divmod(prefill.slot, self._partition_slots)
                pairs[partition].append((prefill.source % self._partition_slots, slot))
        for start in range(0, max(map(len, pairs)), ENDS):
            self._copy_batch([rows[start : start + ENDS] for rows in pairs])

    def warmup(self) -> None:
        """Compiles the program."""
        self._copy_batch([[]] * self._partitions)

    def _copy_batch(self, pairs: list[list[tuple[int, int]]]) -> None:
        # A target that is no slot: a row that is not filled copies nothing.
        slots = np.full((self._partitions, ENDS, 2), (0, self._partition_slots), np.int32)
        for rows, row_pairs in zip(slots, pairs, strict=True):
            rows[: len(row_pairs)] = np.reshape(row_pairs, (-1, 2))

        def copy_step(
            _params: Any, cache: Any, state: Any, slots: jax.Array
        ) -> tuple[Any, Any, jax.Array]:
            return copy_ends(cache, *slots.T), state, slots

        self._programs.run_step(("copy ends",), copy_step, {}, slots.reshape(-1, 2), (SLOTS,))
