"""Prompts that leave out tokens which slots hold already (`engine.prefill_chunk`)."""

import collections
from collections.abc import Callable, Sequence

import numpy as np

from gigpo_jax.engines.base import Completion
from gigpo_jax.engines.jax.chunked import ChunkReader
from gigpo_jax.engines.jax.kept_slots import KeptSlots
from gigpo_jax.engines.jax.prefill import MakeImageRows
from gigpo_jax.engines.jax.prefixes import Prefill, PrefixTable
from gigpo_jax.engines.jax.programs import EngineSettings, Programs
from gigpo_jax.engines.request import Request, Session


class HeldTokens:
    """The tokens that slots hold, and the prefills that continue them.

    Attributes:
      reader: Reader of what a prompt has beside them.
      prefixes: Chunks that the slots hold.
      kept: Responses that later prompts of a conversation may continue.
      ended_sessions: Sessions that ended since the last round.
    """

    def __init__(self, reader: ChunkReader, prefixes: PrefixTable, *, keeps_responses: bool):
        """Creates a table of slots that hold nothing; `keeps_responses` as in the settings."""
        self.reader = reader
        self.prefixes = prefixes
        self.kept = KeptSlots(reader.chunk, reader.last_start)
        self.ended_sessions: collections.deque[Session] = collections.deque()
        self._keeps_responses = keeps_responses

    def clear(self) -> None:
        """Forgets what slots hold."""
        self.prefixes.clear()
        self.kept.clear()

    def end_session(self, session: Session) -> None:
        """Frees the slot that waits for a session's next prompt."""
        if self._keeps_responses:
            self.ended_sessions.append(session)

    def free_sessions(self) -> None:
        """Frees the slots of the sessions that have ended."""
        while self.ended_sessions:
            self.kept.end_session(self.ended_sessions.popleft())

    def keep(self, slot: int, request: Request, completion: Completion) -> None:
        """Keeps what the slot of a finished request holds, if a later prompt may continue it."""
        # A slot with keys and values of several weights is for no other prompt.
        is_pure = completion.versions is None
        if not self._keeps_responses or not is_pure or request.cancelled:
            return
        ends = self.reader.ends
        if ends is not None and not ends.can_continue(request, completion.tokens.size):
            return
        # Never with the last token, which the cache has only where the device went on behind a stop
        # string. It does so by chance, and the bits of a token that is read are others.
        tokens = np.append(prefix_content(request), completion.tokens[:-1])
        self.kept.keep(slot, tokens, request.params.session)

    def place_prefills(
        self,
        requests: Sequence[Request],
        free_slots: Callable[[], Sequence[int]],
        assign_slot: Callable[[int, Request], None],
    ) -> list[tuple[Prefill, Request]]:
        """Assigns a slot to each request, and what is read into it.

        Args:
          requests: Requests that start now.
          free_slots: Function that lists the free slots.
          assign_slot: Function that assigns one.
        """
        self.prefixes.begin_round()
        placed_requests: list[tuple[Prefill, Request]] = []
        new_requests = []
        # First those that continue a slot, so that no other prompt of the round takes it.
        for request in requests:
            continued = self.kept.take_continued(prefix_content(request), request.params.session)
            if continued is None:
                new_requests.append(request)
                continue
            slot, held_tokens = continued
            assign_slot(slot, request)
            self.prefixes.forget_end(slot)
            # In the first wave: the slot's shared chunks, those of its first prompt, keep their
            # bits.
            placed_requests.append((Prefill(slot, None, range(0), held_tokens, 0), request))
        # Prompts are placed one by one, because each may share chunks with those placed before
        # it.
        for request in new_requests:
            offered_slots = self.kept.offer_slots(free_slots())
            prefill = self.prefixes.place_prefill(prefix_content(request), offered_slots)
            if self.reader.ends is not None and not self.reader.ends.outlasts(request):
                self.prefixes.forget_end(prefill.slot)
            self.kept.give_up(prefill.slot)
            assign_slot(prefill.slot, request)
            placed_requests.append((prefill, request))
        return placed_requests


def hold_tokens(
    programs: Programs,
    settings: EngineSettings,
    partitions: int,
    make_image_rows: MakeImageRows | None,
) -> HeldTokens:
    """Makes the table of an engine with prefill in chunks; arguments as for `PromptReader`."""
    ends = None
    if programs.config.delta is not None or programs.config.num_window_layers:
        from gigpo_jax.engines.jax.prefix_ends import PrefixEnds

        ends = PrefixEnds(programs, settings, partitions)
    reader = ChunkReader(
        programs,
        slots=settings.slots,
        partitions=partitions,
        rows=settings.rows[-1],
        chunk=settings.prefill_chunk,
        capacity=settings.capacity,
        make_image_rows=make_image_rows,
        ends=ends,
    )
    prefixes = PrefixTable(
        settings.slots,
        partitions,
        settings.prefill_chunk,
        ends_only=ends is not None and ends.are_only,
    )
    return HeldTokens(reader, prefixes, keeps_responses=settings.keep_responses)


def prefix_content(request: Request) -> np.ndarray:
    """Token ids [P] of a prompt, where an image token has a hash of its image instead.

    Two prompts share a prefix, images included, exactly where these arrays are equal.
    """
    if request.images is None:
        return request.prompt
    from gigpo_jax.engines.prompt_images import hash_images

    return hash_images(request.prompt, request.images)
