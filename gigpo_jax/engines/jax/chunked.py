"""Prefill in chunks: the device calls that fill slots as placed by `PrefixTable`."""

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from gigpo_jax.engines.jax.chunk_programs import (
    copy_prefix_chunks,
    run_prefill_chunks,
)
from gigpo_jax.engines.jax.prefill import MakeImageRows
from gigpo_jax.engines.jax.prefixes import Prefill
from gigpo_jax.engines.jax.programs import Programs
from gigpo_jax.engines.jax.slots import SETTINGS, STOP_IDS, PromptBatch, pack_request
from gigpo_jax.engines.request import Request

if TYPE_CHECKING:
    from gigpo_jax.engines.jax.prefix_ends import PrefixEnds

COPIES = 32  # chunks of a partition that a device call copies


class ChunkReader:
    """Reader of prompts that packs their chunks into rows, so every device call has the same shape.

    Attributes:
      chunk: Length of a chunk, tokens.
      last_start: Largest first index of a chunk; it is written whole, with its padding.
      ends: Copier of what only the ends of prompts have; None: there is nothing.
    """

    def __init__(
        self,
        programs: Programs,
        *,
        slots: int,
        partitions: int,
        rows: int,
        chunk: int,
        capacity: int,
        make_image_rows: MakeImageRows | None,
        ends: "PrefixEnds | None",
    ) -> None:
        """Stores the shapes of the device calls.

        Args:
          programs: Compiled programs of the engine.
          slots: Number of slots.
          partitions: Number of equal partitions of the slots.
          rows: Number of chunks of a partition that a device call reads.
          chunk: Length of a chunk, tokens.
          capacity: Length of the cache, tokens.
          make_image_rows: Constructor of image inputs; None for a text-only model.
          ends: Copier of what only the ends of prompts have; None: there is nothing.
        """
        self._programs = programs
        self._partitions = partitions
        self._partition_slots = slots // partitions
        self._rows = rows
        self.chunk = chunk
        self.last_start = capacity - chunk
        self.ends = ends
        self._make_image_rows = make_image_rows

    def warmup(self, params: Any) -> None:
        """Compiles the programs."""
        self._copy_batch([[]] * self._partitions)
        if self.ends is not None:
            self.ends.warmup()
        self._read_batch(params, [[]] * self._partitions)

    def read_prompts(
        self, params: Any, placed_requests: Sequence[tuple[Prefill, Request]]
    ) -> list[tuple[jax.Array, list[int | None]]]:
        """Fills the slots of prompts.

        Returns:
          For each device call the drawn tokens and log-probabilities [2, B], and the slots of these
          B rows, None for rows that drew nothing.
        """
        calls = []
        # The sort is stable. In a wave, copies stay in the order of the prefills: a slot is read
        # for an earlier prefill before a later one overwrites it.
        in_order = sorted(placed_requests, key=_prefill_wave)
        for wave in (list(group) for _, group in itertools.groupby(in_order, key=_prefill_wave)):
            # (source slot, target slot, first token) and (request, slot, first token)
            copies: list[list[tuple[int, int, int]]] = [[] for _ in range(self._partitions)]
            chunks: list[list[tuple[Request, int, int]]] = [[] for _ in range(self._partitions)]
            for prefill, request in wave:
                partition, slot = divmod(prefill.slot, self._partition_slots)
                if prefill.source is not None:
                    source = prefill.source % self._partition_slots
                    copies[partition] += [(source, slot, i * self.chunk) for i in prefill.copies]
                for start in range(prefill.start, request.prompt.size, self.chunk):
                    chunks[partition].append((request, prefill.slot, start))
            # Copies before reads: a chunk may extend a prefix that is copied in the same wave.
            for copy_batch in _split_batches(copies, COPIES):
                self._copy_batch(copy_batch)
            if self.ends is not None:
                self.ends.copy(prefill for prefill, _ in wave)
            for chunk_batch in _split_batches(chunks, self._rows):
                # No result is fetched here, so that the device works while the host packs the next
                # batch.
                calls.append(self._read_batch(params, chunk_batch))
        return calls

    def _copy_batch(self, batch: list[list[tuple[int, int, int]]]) -> None:
        # A target that is no slot: a row that is not filled copies nothing.
        chunks = np.full((self._partitions, COPIES, 3), (0, self._partition_slots, 0), np.int32)
        for rows, copies in zip(chunks, batch, strict=True):
            rows[: len(copies)] = np.reshape(copies, (-1, 3))
        copy_prefix_chunks(self._programs, chunks.reshape(-1, 3))

    def _read_batch(
        self, params: Any, batch: list[list[tuple[Request, int, int]]]
    ) -> tuple[jax.Array, list[int | None]]:
        no_slot = self._partition_slots
        width = 2 + SETTINGS + STOP_IDS + self.chunk
        rows = np.zeros((self._partitions * self._rows, width), np.int32)
        # Slots that do not exist: a row that is not filled is dropped.
        rows[:, 0] = no_slot
        rows[:, 2] = no_slot
        image_rows = self._make_image_rows and self._make_image_rows(len(rows), self.chunk)
        drawing_slots: list[int | None] = [None] * len(rows)
        for partition, chunks in enumerate(batch):
            for offset, (request, slot, start) in enumerate(chunks):
                row = partition * self._rows + offset
                tokens = request.prompt[start : start + self.chunk]
                end = start + tokens.size
                partition_slot = slot % self._partition_slots
                drawing_slot = no_slot
                if end == request.prompt.size:
                    drawing_slot = partition_slot
                    drawing_slots[row] = slot
                rows[row, :2] = partition_slot, start
                pack_request(rows[row, 2:], tokens, drawing_slot, request.params, request.stop_ids)
                # `pack_request` has written the length of the chunk; the program takes the prompt's
                # length up to the end of the chunk, which is also the position of the drawn token.
                rows[row, 3] = end
                if image_rows:
                    image_rows.write_row(row, request, start, end)
        prompt_batch = PromptBatch(rows, image_rows.inputs if image_rows else None)
        return run_prefill_chunks(self._programs, params, prompt_batch), drawing_slots


def _prefill_wave(placed_request: tuple[Prefill, Request]) -> int:
    return placed_request[0].wave


def _split_batches(partitions: list[list[Any]], size: int) -> Iterator[list[list[Any]]]:
    """Splits the partitions' lists into pieces of at most `size`."""
    longest = max(map(len, partitions))
    for start in range(0, longest, size):
        yield [items[start : start + size] for items in partitions]
