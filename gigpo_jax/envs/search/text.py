"""Exact match, and the block that shows documents to the agent."""

import re
import string
from collections.abc import Iterable, Sequence

from gigpo_jax.envs.search.retrieval.retriever import Document

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
NOTHING_FOUND = "No documents were found."
_CUT = " ..."


def normalise_answer(answer: str) -> str:
    """Returns an answer in lower case and single spaces, without punctuation and articles."""
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_PUNCTUATION)).split())


def _comparison_form(answer: str) -> str:
    # A departure from the usual definition: an answer of articles and punctuation alone ("The The",
    # "A") would be empty, so it is compared without normalisation.
    return normalise_answer(answer) or " ".join(answer.lower().split())


def exact_match(answer: str, golden: Iterable[str]) -> bool:
    """Whether an answer that is not empty equals a golden answer after normalisation."""
    form = _comparison_form(answer)
    return form != "" and any(form == _comparison_form(gold) for gold in golden)


def escape_tags(text: str) -> str:
    """Returns a text as one line in single spaces, where "<" becomes "&lt;"."""
    # Without "<" no tag can begin, and without line breaks no other item of the list.
    return " ".join(text.replace("<", "&lt;").split())


def format_documents(documents: Sequence[Document], *, document_chars: int = 4000) -> str:
    """The observation after a search; longer documents are cut.

    Documents are escaped, so none can end the block, begin another item or write a tag.
    """
    lines = ["<information>"]
    for number, document in enumerate(documents, 1):
        # Cut before escaping too: a document of megabytes need not be escaped as a whole.
        text = escape_tags(document.contents[: 4 * document_chars])
        if len(text) > document_chars:
            text = text[:document_chars] + _CUT
        lines.append(f"[{number}] {text}")
    if not documents:
        lines.append(NOTHING_FOUND)
    lines.append("</information>")
    return "\n".join(lines)
