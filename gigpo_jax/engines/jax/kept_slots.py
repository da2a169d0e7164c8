"""The conversations whose slots wait for their next prompt."""

import hashlib
from collections import OrderedDict, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gigpo_jax.engines.request import Session


@dataclass(frozen=True)
class KeptSequence:
    """The tokens that a free slot holds.

    Attributes:
      session: Session of the request that wrote them; None: it had none.
      length: Number of tokens, from the first on.
      digest: Hash of these tokens.
    """

    session: Session | None
    length: int
    digest: bytes


class KeptSlots:
    """The free slots that a next prompt may continue.

    A prompt continues a slot if it begins with all tokens of the slot and has the same session.
    The session is compared too, because the last bits of a cache depend on which of its tokens
    were decoded: an episode then never depends on what another one happened to sample.

    Attributes:
      given_up: Number of conversations that lost their slot to another one.
    """

    def __init__(self, chunk: int, last_start: int) -> None:
        """Creates a table for prompts that are read in chunks, the last from `last_start` on."""
        self.given_up = 0
        self._chunk = chunk
        self._last_start = last_start
        # In the order in which slots are given up. Slots come in when their request ends, so it is
        # that of waiting, but for those that `take_continued` moves to the front.
        self._sequences: OrderedDict[int, KeptSequence] = OrderedDict()
        self._slots: defaultdict[Session | None, dict[KeptSequence, list[int]]] = defaultdict(dict)
        # Slots of sessions that went on elsewhere.
        self._superseded: set[int] = set()

    def clear(self) -> None:
        """Forgets everything: the cache holds nothing of the weights."""
        self._sequences.clear()
        self._slots.clear()
        self._superseded.clear()

    def keep(self, slot: int, tokens: np.ndarray, session: Session | None) -> None:
        """Enters a free slot whose cache holds `tokens` [N], as in `held_tokens.prefix_content`."""
        sequence = KeptSequence(session, tokens.size, _hash_tokens(tokens))
        self._sequences[slot] = sequence
        self._slots[session].setdefault(sequence, []).append(slot)

    def take_continued(self, prompt: np.ndarray, session: Session | None) -> tuple[int, int] | None:
        """Removes the slot with the most tokens that a prompt continues.

        From now on, other slots of the session are given up first: its conversation goes on
        elsewhere.

        Args:
          prompt: [P], as in `held_tokens.prefix_content`.
          session: Session of the request.

        Returns:
          The slot and the number of its tokens, less than P; None if there is no such slot.
        """
        # `get`, because `[]` would add an empty entry for every session.
        slots = self._slots.get(session, {})
        hasher = hashlib.blake2b(digest_size=16)
        hashed = 0
        continued = None
        # The prompt is hashed once, whatever the number of slots.
        for length in sorted({sequence.length for sequence in slots}):
            # At least one token is read: the first response token needs its logits.
            if length >= prompt.size:
                break
            hasher.update(prompt[hashed:length].tobytes())
            hashed = length
            sequence = KeptSequence(session, length, hasher.digest())
            chunks = (prompt.size - length - 1) // self._chunk
            # Otherwise the prompt is read anew, in chunks that end with the cache.
            fits = length + chunks * self._chunk <= self._last_start
            if fits and sequence in slots:
                continued = slots[sequence][0], length
        if continued is not None:
            self._remove(continued[0])
        if session is not None:
            for sequence_slots in self._slots.get(session, {}).values():
                for slot in sequence_slots:
                    self._sequences.move_to_end(slot, last=False)
                    self._superseded.add(slot)
        return continued

    def offer_slots(self, free_slots: Sequence[int]) -> list[int]:
        """Lists the slots that a new prompt may take: free ones that keep nothing.

        If there is none, it lists the slot that is given up first.
        """
        empty_slots = [slot for slot in free_slots if slot not in self._sequences]
        return empty_slots or [next(iter(self._sequences))]

    def give_up(self, slot: int) -> None:
        """Removes a slot, if it is kept, for another prompt."""
        if slot in self._sequences:
            self.given_up += slot not in self._superseded
            self._remove(slot)

    def end_session(self, session: Session) -> None:
        """Removes all slots of a session."""
        for slots in list(self._slots.get(session, {}).values()):
            for slot in list(slots):
                self._remove(slot)

    def _remove(self, slot: int) -> None:
        sequence = self._sequences.pop(slot)
        self._superseded.discard(slot)
        slots = self._slots[sequence.session]
        slots[sequence].remove(slot)
        # Entries of sessions that ended would fill the memory over a long run.
        if not slots[sequence]:
            del slots[sequence]
        if not slots:
            del self._slots[sequence.session]


def _hash_tokens(tokens: np.ndarray) -> bytes:
    return hashlib.blake2b(tokens.tobytes(), digest_size=16).digest()
