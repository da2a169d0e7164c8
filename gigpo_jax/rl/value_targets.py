"""Targets of a critic."""

from typing import Any, NamedTuple


class ValueTargets(NamedTuple):
    """Targets of a critic at response tokens: f32 arrays of one shape, mostly [M, B, C].

    A critic with V values has [M, B, C, V].

    Attributes:
      value: Estimate of the return before the token, made before the updates.
      target: Target of the estimate.
      weight: Weight of the token in the critic's loss; 0 for tokens without a target.
    """

    value: Any
    target: Any
    weight: Any
