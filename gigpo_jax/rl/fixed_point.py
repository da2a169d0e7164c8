"""A condition for values of states."""

from collections.abc import Mapping
from typing import Any

from gigpo_jax.core.errors import InputError


def check_fixed_point(settings: Mapping[str, Any], gamma: float) -> None:
    """Checks that values of states are unique.

    Raises:
      InputError: They are not: states on a loop that only truncated episodes pass have no way to
        an end.
    """
    if settings.get("truncation") != "ignore" or settings.get("shrinkage") != 0 or gamma < 1:
        return
    raise InputError(
        "a loop that only truncated episodes pass has no value with gamma 1",
        key="config.rl.settings.truncation",
        value="'ignore'",
        fix="use gamma below 1, or shrinkage above 0",
    )
