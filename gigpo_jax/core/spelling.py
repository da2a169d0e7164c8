"""Names like a misspelt one, for errors."""

import difflib
from collections.abc import Iterable


def nearest_names(name: str, names: Iterable[str]) -> list[str]:
    """Returns at most three names like a misspelt one, or names that end with its last component.

    The last component of `a.b` is `b`: so a key without its section is recognised.
    """
    # A list, because `names` may be an iterator and is read twice.
    candidates = list(names)
    matches = difflib.get_close_matches(name, candidates, n=3)
    if matches:
        return matches
    component = name.rpartition(".")[2]
    # difflib's ratio falls with the length of the section: `slots` is not similar to
    # `engine.slots`.
    return [candidate for candidate in candidates if component and candidate.endswith(component)]
