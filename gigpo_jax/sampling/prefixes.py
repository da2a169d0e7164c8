"""Which chunks of prompts the slots of an engine hold, and what is left to read of a new prompt."""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Reading:
    """How a prompt gets into a slot.

    Attributes:
      slot: its slot.
      copies: (source slot, chunk) for each chunk that is copied.
      start: index of the first token that is read.
      wave: copies and reads of a wave follow those of the waves before it; in a wave, reads follow copies.
    """

    slot: int
    copies: tuple[tuple[int, int], ...]
    start: int
    wave: int


class Prefixes:
    """The chunks in each slot; a chunk is known by its tokens and all tokens before it.

    Only whole chunks are kept, and only those that a prefill computed: a token's keys and values then have the same
    bits whether they are copied or computed.
    """

    def __init__(self, slots: int, parts: int, chunk: int) -> None:
        """Nothing is held yet; slots of different parts share nothing."""
        self._chunk, self._part = chunk, slots // parts
        self._held: list[list[bytes]] = [[] for _ in range(slots)]
        self._holders: dict[tuple[int, bytes], dict[int, int]] = defaultdict(dict)  # (part, chunk) -> slot -> wave
        self._turn = [0] * slots
        self._read_in: Counter[int] = Counter()

    def clear(self) -> None:
        """Forgets everything: the cache is of other weights."""
        self._held = [[] for _ in self._held]
        self._holders.clear()

    def begin(self) -> None:
        """Begins a round of prompts: what was planned before is in the cache now."""
        self._read_in.clear()
        for holders in self._holders.values():
            for slot in holders:
                holders[slot] = -1

    def place(self, prompt: np.ndarray, free: Sequence[int]) -> Reading:
        """Chooses one of the free slots for a prompt [P] i32, and says how to fill it.

        The part that holds the longest prefix, then the one with the most free slots; there the slot that holds the
        longest prefix itself, then the one that was not used for longest.
        """
        keys = self._keys(prompt)
        shared = keys[: (len(prompt) - 1) // self._chunk]  # at least the last token is read, for its logits
        rooms = Counter(slot // self._part for slot in free)
        part = max(rooms, key=lambda part: (self._known(part, shared), rooms[part], -part))
        known = self._known(part, shared)
        mine = [slot for slot in free if slot // self._part == part]
        slot = max(mine, key=lambda slot: (_common(self._held[slot], shared), -self._turn[slot], -slot))
        own = _common(self._held[slot], shared)
        copies, wave = [], self._read_in[slot]
        for number in range(own, known):
            holders = self._holders[part, shared[number]]
            source = min(holders, key=lambda slot: (holders[slot], slot))
            copies.append((source, number))
            wave = max(wave, holders[source] + 1)
        for source, _ in copies:
            self._read_in[source] = max(self._read_in[source], wave)
        self._hold(slot, keys, wave)
        return Reading(slot, tuple(copies), known * self._chunk, wave)

    def _keys(self, prompt: np.ndarray) -> list[bytes]:
        keys, before = [], b""
        for start in range(0, len(prompt) - self._chunk + 1, self._chunk):
            before = hashlib.blake2b(before + prompt[start : start + self._chunk].tobytes(), digest_size=16).digest()
            keys.append(before)
        return keys

    def _known(self, part: int, keys: Sequence[bytes]) -> int:
        """How many of a prompt's first chunks some slot of a part holds."""
        return next((n for n, key in enumerate(keys) if not self._holders.get((part, key))), len(keys))

    def _hold(self, slot: int, keys: list[bytes], wave: int) -> None:
        part = slot // self._part
        for key in self._held[slot]:
            self._holders[part, key].pop(slot, None)
            if not self._holders[part, key]:
                del self._holders[part, key]
        for key in keys:
            self._holders[part, key][slot] = wave
        self._held[slot] = keys
        self._turn[slot] = max(self._turn) + 1


def _common(held: Sequence[bytes], keys: Sequence[bytes]) -> int:
    return next((n for n, (one, other) in enumerate(zip(held, keys)) if one != other), min(len(held), len(keys)))
