"""What looks documents up: the Protocol, and the types it speaks in."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

MAX_QUERY_CHARS = 2000  # longer queries are cut: no question needs more, and a tokenizer would choke on a book
MAX_TOPK = 1000
INSTALL = 'pip install "gigpo_jax[search]"'


@dataclass(frozen=True)
class Document:
    """One passage.

    Attributes:
      id: as in the corpus.
      contents: its title in double quotes, a line break, its text.
    """

    id: str
    contents: str


@dataclass(frozen=True)
class Hit:
    """A document that was found, and its score (larger is better; the unit is the retriever's)."""

    document: Document
    score: float


class Retriever(Protocol):
    """Looks up several queries at once; safe to call from several threads.

    One that waits for another process also has `submit(queries, topk)`, which gives a `concurrent.futures.Future` of
    what `search` gives.
    """

    def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        """For each query at most `topk` hits, the best first; equal scores in the order of the corpus.

        Raises:
          EnvError: the retriever is not to be had.
        """
        ...

    def close(self) -> None:
        """Gives back what is held; may be called twice."""
        ...


async def search_async(retriever: Retriever, queries: Sequence[str], topk: int) -> list[list[Hit]]:
    """As `Retriever.search`; lets the event loop go on meanwhile if the retriever is elsewhere."""
    submit = getattr(retriever, "submit", None)
    if submit is None:
        return retriever.search(queries, topk)
    found: list[list[Hit]] = await asyncio.wrap_future(submit(queries, topk))
    return found
