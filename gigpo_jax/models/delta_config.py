"""The shape of gated delta-net layers."""

from dataclasses import dataclass


@dataclass(frozen=True)
class DeltaConfig:
    """The gated delta-net layers of a model.

    Attributes:
      key_heads: G, heads of queries and keys.
      value_heads: G R, heads of values; a multiple of G.
      key_dim: K, width of a head of queries and keys.
      value_dim: V, width of a head of values.
      taps: W, tokens that the convolution sees.
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    taps: int = 4

    def __post_init__(self) -> None:
        if self.value_heads % self.key_heads:
            raise ValueError(
                f"linear_num_key_heads={self.key_heads} must divide "
                f"linear_num_value_heads={self.value_heads}"
            )

    @property
    def channels(self) -> int:
        """C, width of queries, keys and values together."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim
