"""The prompt chunks that the slots of an engine hold, and where new prompts are read."""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Prefill:
    """The steps that fill a slot with a prompt.

    Attributes:
      slot: Slot of the prompt.
      source: Slot whose tokens the prompt begins with, up to `start`; it may be `slot`. None: there
        are no such tokens.
      copies: Index of each chunk that is copied from the source.
      start: Index of the first token that is read.
      wave: Order of device calls: copies and reads of a wave follow all of the waves before it;
        in a wave, reads follow copies.
    """

    slot: int
    source: int | None
    copies: range
    start: int
    wave: int


class PrefixTable:
    """The chunks in each slot, by hash.

    A chunk's key is the hash of its tokens and all tokens before it. Only whole chunks are kept,
    and only those that a prefill computed: a token's keys and values then have the same bits
    whether they are copied or computed.
    """

    def __init__(self, slots: int, partitions: int, chunk: int, *, ends_only: bool = False) -> None:
        """Creates empty slots; slots of different partitions share nothing.

        With `ends_only` a prompt continues another one only behind its last whole chunk: the states
        and windows behind earlier ones are gone.
        """
        self._chunk = chunk
        self._ends_only = ends_only
        self._partition_slots = slots // partitions
        self._slot_keys: list[list[bytes]] = [[] for _ in range(slots)]
        # (partition, chunk key) -> slot -> wave in which the slot gets the chunk
        self._holders: dict[tuple[int, bytes], dict[int, int]] = defaultdict(dict)
        self._last_use = [0] * slots
        # slot -> last wave in which others copy from it
        self._copy_wave: Counter[int] = Counter()

    def clear(self) -> None:
        """Forgets everything: the cache belongs to other weights."""
        self._slot_keys = [[] for _ in self._slot_keys]
        self._holders.clear()

    def begin_round(self) -> None:
        """Begins a round of prompts, when all earlier prefills are in the cache."""
        self._copy_wave.clear()
        for holders in self._holders.values():
            for slot in holders:
                # Before wave 0, the first of the new round: such a chunk can be copied at once.
                holders[slot] = -1

    def place_prefill(self, prompt: np.ndarray, free_slots: Sequence[int]) -> Prefill:
        """Places a prompt's prefill in one of the free slots.

        `prompt` is [P] i32. Prefers the partition that holds the longest prefix, then the one with
        the most free slots; there the slot that holds the longest prefix itself, then the one
        unused for longest.
        """
        keys = self._chunk_keys(prompt)
        # At least the last token is read: the first response token needs its logits, and a cache
        # holds only keys and values.
        reusable_keys = keys[: (len(prompt) - 1) // self._chunk]
        partition = self._choose_partition(reusable_keys, free_slots)
        slot = self._choose_slot(partition, reusable_keys, free_slots)

        available = self._held_chunks(partition, reusable_keys)
        first_copy = _common_length(self._slot_keys[slot], reusable_keys)
        copies = range(min(first_copy, available), available)
        # Other prompts may still copy chunks that this slot holds now. Its new content may come in
        # the same wave, because copies of a wave precede its reads.
        wave = self._copy_wave[slot]
        source = None
        if available and (copies or self._ends_only):
            holders = self._holders[partition, reusable_keys[available - 1]]
            # The source that has the chunks earliest, so that the copy waits for few waves.
            source = min(holders, key=lambda holder: (holders[holder], holder))
            wave = max(wave, holders[source] + 1)
            # A source must not be overwritten before the wave in which it is copied.
            self._copy_wave[source] = max(self._copy_wave[source], wave)
        # Entered before the device has them, so that later prompts of this round can copy them. If
        # the round fails, the engine clears the table.
        self._set_slot(slot, keys, len(reusable_keys), wave)
        return Prefill(slot, source, copies, available * self._chunk, wave)

    def forget_end(self, slot: int) -> None:
        """Notes that what a slot has at the end of its prompt alone will be overwritten."""
        if self._ends_only:
            self._remove_holder(slot)

    def _choose_partition(self, keys: Sequence[bytes], free_slots: Sequence[int]) -> int:
        free_counts = Counter(slot // self._partition_slots for slot in free_slots)

        def preference(partition: int) -> tuple[int, int, int]:
            return self._held_chunks(partition, keys), free_counts[partition], -partition

        return max(free_counts, key=preference)

    def _choose_slot(self, partition: int, keys: Sequence[bytes], free_slots: Sequence[int]) -> int:
        candidates = [slot for slot in free_slots if slot // self._partition_slots == partition]

        def preference(slot: int) -> tuple[int, int, int]:
            return _common_length(self._slot_keys[slot], keys), -self._last_use[slot], -slot

        return max(candidates, key=preference)

    def _chunk_keys(self, prompt: np.ndarray) -> list[bytes]:
        keys = []
        key = b""
        for start in range(0, len(prompt) - self._chunk + 1, self._chunk):
            chunk = prompt[start : start + self._chunk].tobytes()
            # Chained: a chunk is equal only if all tokens before it are equal too.
            key = hashlib.blake2b(key + chunk, digest_size=16).digest()
            keys.append(key)
        return keys

    def _held_chunks(self, partition: int, keys: Sequence[bytes]) -> int:
        """Counts the first chunks of a prompt that some slot of a partition holds."""
        for count in range(len(keys), 0, -1):
            # `get`, because `[]` would add an empty entry for every chunk that is looked up.
            if self._holders.get((partition, keys[count - 1])):
                return count
        return 0

    def _set_slot(self, slot: int, keys: list[bytes], reusable: int, wave: int) -> None:
        self._remove_holder(slot)
        shared_keys = keys[max(reusable - 1, 0) : reusable] if self._ends_only else keys
        for key in shared_keys:
            self._holders[slot // self._partition_slots, key][slot] = wave
        self._slot_keys[slot] = keys
        self._last_use[slot] = max(self._last_use) + 1

    def _remove_holder(self, slot: int) -> None:
        partition = slot // self._partition_slots
        for key in self._slot_keys[slot]:
            holders = self._holders.get((partition, key), {})
            holders.pop(slot, None)
            # Keys of chunks that no slot holds would fill the memory over a long run.
            if not holders:
                self._holders.pop((partition, key), None)


def _common_length(slot_keys: Sequence[bytes], prompt_keys: Sequence[bytes]) -> int:
    """Counts the equal keys at the beginning of two sequences."""
    length = 0
    for slot_key, prompt_key in zip(slot_keys, prompt_keys):
        if slot_key != prompt_key:
            break
        length += 1
    return length
