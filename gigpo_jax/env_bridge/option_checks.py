"""Checks of what environments and experts are given."""

from collections.abc import Collection

from gigpo_jax.core.errors import InputError


def check_split(split: str, splits: Collection[str]) -> None:
    """Raises InputError for a split that an environment lacks."""
    if split not in splits:
        raise InputError(
            f"this environment has the splits {', '.join(splits)}",
            key="config.env.split",
            value=repr(split),
        )


def check_fractions(**fractions: float) -> None:
    """Raises InputError unless all values are probabilities."""
    for key, fraction in fractions.items():
        if not 0.0 <= fraction <= 1.0:
            raise InputError("must be a probability between 0 and 1", key=key, value=repr(fraction))
