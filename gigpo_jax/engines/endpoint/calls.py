"""Calls of a session, and which of them a repeated request repeats.

A client that waited too long sends its request again. If the first one was not cancelled, as behind
a proxy, its response would be a step that the program does not know of.
"""

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gigpo_jax.engines.base import Completion

KEY_HEADERS = ("Idempotency-Key", "X-Request-Id")
# The clients of OpenAI and Anthropic send no key, but the number of times they sent the request
# before.
RETRY_HEADER = "X-Stainless-Retry-Count"


@dataclass(frozen=True)
class CallIdentity:
    """What tells a repeated request from a new one.

    Attributes:
      digest: Hash of the request.
      key: Idempotency key of the client, or "".
      is_retry: Whether the client says that it repeats a request.
    """

    digest: bytes
    key: str
    is_retry: bool


@dataclass(eq=False)
class SessionCall:
    """A call of a session.

    Attributes:
      index: Number of the call, which gives its random key.
      identity: Identity of its request.
      completion: Recorded response, or None.
      replaced: Event that is set when another request takes the place of this one.
    """

    index: int
    identity: CallIdentity
    completion: Completion | None = None
    replaced: asyncio.Event = field(default_factory=asyncio.Event)


def identify_call(
    interface: str, body: bytes, anchor: str, headers: Mapping[str, str]
) -> CallIdentity:
    """Identifies a request by its content and its headers."""
    content = repr((interface, body, anchor)).encode()
    key = next((headers[name] for name in KEY_HEADERS if headers.get(name)), "")
    is_retry = headers.get(RETRY_HEADER, "0") not in ("", "0")
    return CallIdentity(hashlib.blake2b(content).digest(), key, is_retry)


def find_repeated(calls: Sequence[SessionCall], identity: CallIdentity) -> SessionCall | None:
    """Returns the call that a request repeats, or None.

    A request without a key can only repeat a call without a recorded response, or the newest call:
    an earlier call with the same prompt may be another step.
    """
    for call in reversed(calls):
        if call.identity.digest != identity.digest:
            continue
        if identity.key and call.identity.key == identity.key:
            return call
        if identity.is_retry and (call.completion is None or call is calls[-1]):
            return call
    return None
