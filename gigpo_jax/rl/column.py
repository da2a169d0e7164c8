"""What a column of a single method holds."""

from typing import NamedTuple


class Column(NamedTuple):
    """What a column of a single method holds; padding is zeros.

    Attributes:
      dtype: Type of its numbers.
      width: Numbers of a row: None for [N], 0 for [N, R] with one for each response token.
      text: Description, with its unit.
    """

    dtype: str
    width: int | None
    text: str
