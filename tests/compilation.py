"""The events of jax's compiler."""

import contextlib
from collections.abc import Iterator
from typing import Any

import jax


@contextlib.contextmanager
def record_events() -> Iterator[list[str]]:
    """Names of the events of the block; other listeners stay."""
    names: list[str] = []

    def add_event(name: str, *_: Any, **__: Any) -> None:
        names.append(name)

    jax.monitoring.register_event_duration_secs_listener(add_event)
    try:
        yield names
    finally:
        jax.monitoring.unregister_event_duration_listener(add_event)
