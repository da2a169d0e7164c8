"""Progress through a sequence."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

from gigpo_jax.run.progress import show_progress

_T = TypeVar("_T")


def track(items: Sequence[_T], title: str, *, unit: str) -> Iterator[_T]:
    """The items one by one, with a bar of progress."""
    with show_progress(title, total=len(items), unit=unit) as bar:
        for item in items:
            yield item
            bar.update()
