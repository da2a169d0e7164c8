"""Prefill of whole prompts, padded to one of a few lengths."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from gigpo_jax.engines.jax.programs import EngineSettings, Programs
from gigpo_jax.engines.jax.slots import SETTINGS, STOP_IDS, PromptBatch, pack_request
from gigpo_jax.engines.request import Request

if TYPE_CHECKING:
    from gigpo_jax.engines.jax.images import ImageRows

MakeImageRows = Callable[[int, int], "ImageRows"]  # (rows, tokens of a row) -> rows without images
PlacedRequest = tuple[int, Request]  # a slot and the request that fills it


class PromptReader:
    """Prefills prompts; prompts of one bucket, a padded length, share a device call."""

    def __init__(
        self,
        programs: Programs,
        settings: EngineSettings,
        partitions: int,
        make_image_rows: MakeImageRows | None,
    ) -> None:
        """Stores the shapes of the device calls; a text-only model makes no rows of images."""
        self._programs = programs
        self._partitions = partitions
        self._partition_slots = settings.slots // partitions
        self._lengths = settings.buckets
        self._rows = settings.rows
        self._make_image_rows = make_image_rows

    def warmup(self, params: Any) -> None:
        """Compiles the programs."""
        # Rows without slots: the calls compile the programs and write nothing into the cache.
        for length in self._lengths:
            for size in self._rows:
                self._read_batch(params, [[]] * self._partitions, size, length)

    def read_prompts(
        self, params: Any, placed_requests: Sequence[PlacedRequest]
    ) -> list[tuple[jax.Array, list[int | None]]]:
        """Fills the slots of prompts; the result is as in `ChunkReader.read_prompts`."""
        buckets: dict[int, list[list[PlacedRequest]]] = {}
        for slot, request in placed_requests:
            # There always is one: `check_prompt` has refused prompts longer than the last bucket.
            bucket = next(length for length in self._lengths if length >= request.prompt.size)
            if bucket not in buckets:
                buckets[bucket] = [[] for _ in range(self._partitions)]
            buckets[bucket][slot // self._partition_slots].append((slot, request))
        # No result is fetched here: the device works on the next call while the host reads the
        # tokens of this one.
        calls = []
        for bucket, remaining in sorted(buckets.items()):
            # All partitions run the same program: the one with the most prompts decides its size.
            while longest := max(map(len, remaining)):
                size = next((rows for rows in self._rows if rows >= longest), self._rows[-1])
                batch = [requests[:size] for requests in remaining]
                remaining = [requests[size:] for requests in remaining]
                calls.append(self._read_batch(params, batch, size, bucket))
        return calls

    def _read_batch(
        self, params: Any, batch: Sequence[Sequence[PlacedRequest]], size: int, length: int
    ) -> tuple[jax.Array, list[int | None]]:
        """Reads at most `size` prompts of each partition."""
        rows = np.zeros((self._partitions * size, SETTINGS + STOP_IDS + length), np.int32)
        # A slot that does not exist: a row that is not filled is dropped.
        rows[:, 0] = self._partition_slots
        image_rows = self._make_image_rows and self._make_image_rows(len(rows), length)
        row_slots: list[int | None] = [None] * len(rows)
        for partition, placed_requests in enumerate(batch):
            for offset, (slot, request) in enumerate(placed_requests):
                row = partition * size + offset
                row_slots[row] = slot
                pack_request(
                    rows[row],
                    request.prompt,
                    slot % self._partition_slots,
                    request.params,
                    request.stop_ids,
                )
                if image_rows:
                    image_rows.write_row(row, request, 0, request.prompt.size)
        prompt_batch = PromptBatch(rows, image_rows.inputs if image_rows else None)
        return self._programs.prefill_prompts(params, prompt_batch), row_slots
