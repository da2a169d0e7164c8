"""Exact match, and the block that shows documents to the agent."""

import re
import string
from collections.abc import Iterable, Sequence

from gigpo_jax.envs.search.retrieval.retriever import Document

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
NOTHING_FOUND = "No documents were found."
_CUT = " ..."


def normalise(answer: str) -> str:
    """An answer for comparison: lower case, no punctuation, no articles, single spaces."""
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_PUNCTUATION)).split())


def _compared(answer: str) -> str:
    # A departure from the usual definition: an answer of articles and punctuation alone ("The The", "A") would be
    # empty, so it is compared without normalisation.
    return normalise(answer) or " ".join(answer.lower().split())


def exact_match(answer: str, golden: Iterable[str]) -> bool:
    """Whether an answer equals a golden answer after normalisation; an empty answer does not."""
    given = _compared(answer)
    return given != "" and any(given == _compared(gold) for gold in golden)


def escape(text: str) -> str:
    """A text as one line without tags: "<" becomes "&lt;", white space becomes single spaces."""
    return " ".join(text.replace("<", "&lt;").split())


def information(documents: Sequence[Document], *, document_chars: int = 4000) -> str:
    """The observation after a search; longer documents are cut.

    Documents are escaped, so none can end the block, begin another item or write a tag.
    """
    lines = []
    for number, document in enumerate(documents, 1):
        text = escape(document.contents[: 4 * document_chars])
        lines.append(f"[{number}] " + (text if len(text) <= document_chars else text[:document_chars] + _CUT))
    return "\n".join(["<information>", *(lines or [NOTHING_FOUND]), "</information>"])
