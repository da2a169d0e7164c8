"""Reads the responses of servers of the `/retrieve` protocol."""

import json
from typing import Any

from gigpo_jax.envs.search.retrieval.retriever import Document, Hit

RETRIED = (500, 502, 503, 504)  # HTTP statuses of requests that are retried
MAX_ANSWER_BYTES = 64 << 20
_EXCERPT = 80  # characters of a response quoted in a message


class Malformed(Exception):
    """A response that is not of the protocol."""


def read_hits(body: bytes, count: int) -> list[list[Hit]]:
    """Reads the body of a response with status 200.

    Args:
      body: JSON in UTF-8.
      count: Number of queries in the request.

    Raises:
      Malformed: it is not `{"result": [[..], ..]}` with a list of documents for each query.
    """
    try:
        rows = json.loads(body.decode("utf-8"))["result"]
        if not isinstance(rows, list) or len(rows) != count:
            raise ValueError(f"no list of {count} results")
        return [[_read_hit(entry) for entry in row] for row in rows]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as err:
        reason = f"{type(err).__name__}: {' '.join(str(err).split())[:200]}"
        raise Malformed(
            f"its answer is not of the /retrieve protocol ({reason}): {quote_excerpt(body)}"
        ) from err


def _read_hit(entry: Any) -> Hit:
    """Reads `{"document": {..}, "score": ..}`, or the document itself, which has no score."""
    document = entry.get("document", entry)
    contents = document["contents"]
    if not isinstance(contents, str):
        raise TypeError(f"contents is a {type(contents).__name__}")
    # Servers without scores send none or null.
    score = float(entry.get("score") or 0.0)
    return Hit(Document(str(document.get("id", "")), contents), score)


def quote_excerpt(body: bytes) -> str:
    """The first characters of a response, quoted for a message."""
    # Cut before it is decoded: a body may have megabytes. UTF-8 has at most 4 bytes a character.
    text = " ".join(body[: 4 * _EXCERPT].decode("utf-8", "replace").split())
    return repr(text[:_EXCERPT]) if text else "an empty answer"
