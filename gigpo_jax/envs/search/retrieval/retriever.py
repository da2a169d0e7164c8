"""The Protocol of retrievers and its types."""

import asyncio
import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gigpo_jax.errors import InputError

MAX_QUERY_CHARS = 2000  # longer queries are cut; they would be slow to tokenize
MAX_TOPK = 1000
INSTALL = 'pip install "gigpo_jax[search]"'


@dataclass(frozen=True)
class Document:
    """One passage."""

    id: str  # as in the corpus
    contents: str  # its title in double quotes, a line break, its text

    @property
    def title(self) -> str:
        """Without its quotes."""
        return self.contents.partition("\n")[0].strip('"')


@dataclass(frozen=True)
class Hit:
    """A found document, and the retriever's score: larger is better."""

    document: Document
    score: float


class Retriever(Protocol):
    """Searches documents; safe to call from several threads.

    A retriever in another process also has `submit(queries, topk)`, which returns a `concurrent.futures.Future` of the
    result of `search`.
    """

    def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        """For each query at most `topk` hits, the best first; equal scores in the order of the corpus.

        Raises:
          EnvError: the retriever failed.
        """
        ...


def optional(module: str, *, key: str = "", install: str = INSTALL) -> Any:
    """A module of an optional package, imported on use; `key` is the setting that needs it, for the message."""
    try:
        return importlib.import_module(module)
    except ImportError as err:
        raise InputError(f"{key}{module.partition('.')[0]} is not installed ({err}); {install}") from err


async def search_async(retriever: Retriever, queries: Sequence[str], topk: int) -> list[list[Hit]]:
    """As `Retriever.search`; does not block the event loop if the retriever is in another process."""
    submit = getattr(retriever, "submit", None)
    if submit is None:
        return retriever.search(queries, topk)
    found: list[list[Hit]] = await asyncio.wrap_future(submit(queries, topk))
    return found
