"""The Protocol of retrievers and its types."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

MAX_QUERY_CHARS = 2000  # longer queries are cut; they would be slow to tokenize
MAX_TOPK = 1000


@dataclass(frozen=True)
class Document:
    """One passage."""

    id: str  # as in the corpus
    contents: str  # its title in double quotes, a line break, its text

    @property
    def title(self) -> str:
        """The title without its quotes."""
        return self.contents.partition("\n")[0].strip('"')


@dataclass(frozen=True)
class Hit:
    """A retrieved document, and the retriever's score: larger is better."""

    document: Document
    score: float


class Retriever(Protocol):
    """Searches documents; safe to call from several threads.

    A retriever in another process also has `submit(queries, topk)`, which returns a
    `concurrent.futures.Future` of the result of `search`.
    """

    def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        """At most `topk` hits for each query, best first, equal scores in the corpus's order.

        Raises:
          EnvError: the retriever failed.
        """
        ...


async def search_async(retriever: Retriever, queries: Sequence[str], topk: int) -> list[list[Hit]]:
    """Searches as `Retriever.search`; a retriever in another process blocks no event loop."""
    # Without it the retriever searches in this process and blocks the loop meanwhile.
    submit = getattr(retriever, "submit", None)
    if submit is None:
        return retriever.search(queries, topk)
    hits: list[list[Hit]] = await asyncio.wrap_future(submit(queries, topk))
    return hits
