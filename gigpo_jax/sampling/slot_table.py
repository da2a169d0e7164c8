"""Which request has which slot of an engine."""

import collections

import numpy as np

from gigpo_jax.sampling.request import Request


class SlotTable:
    """The requests in the slots; those of one part of the engine's devices are neighbours.

    Attributes:
      requests: of each slot; None: the slot is free.
      keep: [slots] i32, 0 for a slot whose request is over; as for the program that decodes.
    """

    def __init__(self, slots: int, parts: int) -> None:
        self.requests: list[Request | None] = [None] * slots
        self.keep = np.ones((slots,), np.int32)
        self._part = slots // parts

    def active(self) -> bool:
        """Whether a slot has a request."""
        return any(request is not None for request in self.requests)

    def free(self) -> list[int]:
        """The free slots, those of the part with the most of them first."""
        free = [slot for slot, request in enumerate(self.requests) if request is None]
        left = collections.Counter(slot // self._part for slot in free)
        rank = {}
        for slot in free:
            rank[slot] = left[slot // self._part]
            left[slot // self._part] -= 1
        return sorted(free, key=lambda slot: -rank[slot])

    def take(self, slot: int, request: Request) -> None:
        """Gives a free slot to a request."""
        self.requests[slot], self.keep[slot] = request, 1

    def release(self, slot: int) -> None:
        """Frees a slot."""
        self.requests[slot], self.keep[slot] = None, 0

    def drop_cancelled(self) -> None:
        """Frees the slots whose callers stopped waiting."""
        for slot, request in enumerate(self.requests):
            if request is not None and request.cancelled:
                self.release(slot)

    def clear(self) -> list[Request]:
        """Takes all requests out."""
        found = [request for request in self.requests if request is not None]
        self.requests = [None] * len(self.requests)
        return found
