"""The shape of experts."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ExpertConfig:
    """The experts of a mixture.

    Attributes:
      count: E, experts of a layer.
      per_token: k, experts that a token goes through.
      width: F, width inside an expert.
      normalized: whether the weights of a token's experts are divided by their sum.
      sparse_step: one of so many layers has experts, the first at index `sparse_step` - 1.
      dense_layers: indices of layers that have none all the same.
    """

    count: int
    per_token: int
    width: int
    normalized: bool = True
    sparse_step: int = 1
    dense_layers: tuple[int, ...] = ()

    def has_experts(self, layer: int) -> bool:
        """Tests whether a layer has experts."""
        return layer not in self.dense_layers and (layer + 1) % self.sparse_step == 0
