"""Reads the answers of servers of the `/retrieve` protocol."""

import json
from typing import Any

from gigpo_jax.envs.search.retrieval.retriever import Document, Hit

RETRIED = (500, 502, 503, 504)  # statuses of requests that are retried
MAX_ANSWER_BYTES = 64 << 20
_EXCERPT = 80  # characters of an answer that are shown in a message


class Malformed(Exception):
    """An answer that is not of the protocol."""


def read_answer(answer: bytes, count: int) -> list[list[Hit]]:
    """Reads the body of an answer with status 200; `count` is the number of queries.

    Raises:
      Malformed: it is not `{"result": [[..], ..]}` with a list of documents for each query.
    """
    try:
        result = json.loads(answer.decode("utf-8"))["result"]
        if not isinstance(result, list) or len(result) != count:
            raise ValueError(f"no list of {count} results")
        return [[_hit(found) for found in row] for row in result]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as err:
        said = f"{type(err).__name__}: {' '.join(str(err).split())[:200]}"
        raise Malformed(f"its answer is not of the /retrieve protocol ({said}): {excerpt(answer)}") from err


def _hit(found: Any) -> Hit:
    """`{"document": {..}, "score": ..}`, or the document alone."""
    document = found.get("document", found)
    contents = document["contents"]
    if not isinstance(contents, str):
        raise TypeError(f"contents is a {type(contents).__name__}")
    return Hit(Document(str(document.get("id", "")), contents), float(found.get("score") or 0.0))


def excerpt(answer: bytes) -> str:
    text = " ".join(answer[: 4 * _EXCERPT].decode("utf-8", "replace").split())
    return repr(text[:_EXCERPT]) if text else "an empty answer"
