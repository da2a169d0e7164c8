"""The requests in the slots of an engine."""

import collections

import numpy as np

from gigpo_jax.engines.request import Request


class SlotTable:
    """Assignment of requests to slots; the slots of one device partition are neighbours.

    Attributes:
      requests: Request of each slot; None: the slot is free.
      running: [S] i32, 0 for a slot whose request is over; input of the decoding program.
    """

    def __init__(self, slots: int, partitions: int) -> None:
        """Creates free slots in partitions of equal size."""
        self.requests: list[Request | None] = [None] * slots
        # 1 for free slots too: they are not active on the device, and 0 only cancels.
        self.running = np.ones((slots,), np.int32)
        self._partition_slots = slots // partitions

    def any_active(self) -> bool:
        """Returns whether a slot has a request."""
        return any(request is not None for request in self.requests)

    def free_slots(self) -> list[int]:
        """Lists the free slots, first the slots of the partition that has the most."""
        free = [slot for slot, request in enumerate(self.requests) if request is None]
        remaining = collections.Counter(slot // self._partition_slots for slot in free)
        # A slot's rank is the number of free slots in its partition once those before it are taken.
        # In the order of ranks, new requests go to partitions in turns.
        rank = {}
        for slot in free:
            partition = slot // self._partition_slots
            rank[slot] = remaining[partition]
            remaining[partition] -= 1
        return sorted(free, key=lambda slot: -rank[slot])

    def assign(self, slot: int, request: Request) -> None:
        """Gives a free slot to a request."""
        self.requests[slot] = request
        self.running[slot] = 1

    def release(self, slot: int) -> None:
        """Frees a slot."""
        self.requests[slot] = None
        self.running[slot] = 0

    def release_cancelled(self) -> None:
        """Frees the slots whose callers stopped waiting."""
        for slot, request in enumerate(self.requests):
            if request is not None and request.cancelled:
                self.release(slot)

    def remove_requests(self) -> list[Request]:
        """Removes and returns all requests."""
        requests = [request for request in self.requests if request is not None]
        # `running` stays: all callers drop the state of the device's slots too.
        self.requests = [None] * len(self.requests)
        return requests
