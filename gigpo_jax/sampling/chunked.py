"""Prefill in chunks: the device calls that fill slots as `prefixes.Prefixes` planned it."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from gigpo_jax.sampling import slots as device
from gigpo_jax.sampling.pictures import PictureRows
from gigpo_jax.sampling.prefixes import Reading
from gigpo_jax.sampling.programs import Programs
from gigpo_jax.sampling.request import Request

COPIES = 32  # chunks of a part that a call copies
NewRows = Callable[[int, int], PictureRows]  # rows, tokens of a row -> rows without images


class ChunkReader:
    """Packs chunks of prompts into rows; every call has the same shape."""

    def __init__(
        self, programs: Programs, *, slots: int, parts: int, rows: int, chunk: int, pictures: NewRows | None
    ) -> None:
        """Of an engine with so many slots in equal parts; `rows` chunks of a part are read in a call.

        `pictures` makes the second part of messages for a model that reads images.
        """
        self._pictures = pictures
        self._programs, self._parts, self._part = programs, parts, slots // parts
        self._rows, self._chunk = rows, chunk

    def warmup(self, params: Any) -> None:
        """Compiles the programs."""
        self._copy([[]] * self._parts)
        self._extend(params, [[]] * self._parts)

    def read(self, params: Any, planned: Sequence[tuple[Reading, Request]]) -> list[tuple[jax.Array, list[int | None]]]:
        """Fills the slots of prompts.

        Returns:
          For each call the drawn tokens and log-probabilities [2, B], and the slots of these B rows, None for rows that
          drew nothing.
        """
        calls = []
        for _, wave in itertools.groupby(sorted(planned, key=lambda one: one[0].wave), key=lambda one: one[0].wave):
            copies: list[list[tuple[int, int, int]]] = [[] for _ in range(self._parts)]
            pieces: list[list[tuple[Request, int, int]]] = [[] for _ in range(self._parts)]
            for reading, request in wave:
                part, slot = divmod(reading.slot, self._part)
                copies[part] += [(source % self._part, slot, n * self._chunk) for source, n in reading.copies]
                starts = range(reading.start, request.prompt.size, self._chunk)
                pieces[part] += [(request, reading.slot, start) for start in starts]
            for batch in _batches(copies, COPIES):
                self._copy(batch)
            calls += [self._extend(params, batch) for batch in _batches(pieces, self._rows)]
        return calls

    def _copy(self, batch: list[list[tuple[int, int, int]]]) -> None:
        chunks = np.full((self._parts, COPIES, 3), (0, self._part, 0), np.int32)
        for part, some in zip(chunks, batch, strict=True):
            part[: len(some)] = np.reshape(some, (-1, 3))
        self._programs.copy(chunks.reshape(-1, 3))

    def _extend(self, params: Any, batch: list[list[tuple[Request, int, int]]]) -> tuple[jax.Array, list[int | None]]:
        width = 2 + device.SETTINGS + device.STOP_IDS + self._chunk
        rows = np.zeros((self._parts, self._rows, width), np.int32)
        rows[:, :, 0] = rows[:, :, 2] = self._part  # no slot: a row that is not filled is dropped
        pictures = self._pictures and self._pictures(self._parts * self._rows, self._chunk)
        drawn: list[int | None] = [None] * (self._parts * self._rows)
        for number, pieces in enumerate(batch):
            for row, (request, slot, start) in enumerate(pieces):
                tokens = request.prompt[start : start + self._chunk]
                end = start + tokens.size
                last = end == request.prompt.size
                target, draws = rows[number, row], slot % self._part if last else self._part
                target[:2] = slot % self._part, start
                device.pack_request(target[2:], tokens, draws, request.params, request.stop_ids)
                target[3] = end
                if pictures:
                    pictures.put(number * self._rows + row, request, start, end)
                if last:
                    drawn[number * self._rows + row] = slot
        flat = rows.reshape(-1, width)
        return self._programs.extend(params, (flat, pictures.message) if pictures else flat), drawn


def _batches(parts: list[list[Any]], size: int) -> Iterator[list[list[Any]]]:
    """The parts' lists in pieces of at most `size`."""
    for start in range(0, max(map(len, parts)), size):
        yield [some[start : start + size] for some in parts]
