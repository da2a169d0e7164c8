"""Context extensions: how rotary frequencies change for texts longer than a model first saw."""

import math
import pathlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import jax
import jax.numpy as jnp

from gigpo_jax.core.errors import InputError

if TYPE_CHECKING:
    from gigpo_jax.models.files.json_values import JsonValues


class Scaling(Protocol):
    """A context extension.

    Attributes:
      kind: `rope_type` in config.json.
    """

    kind: ClassVar[str]

    def extend(self, context: int) -> int:
        """Returns the longest text, tokens, of a model whose config.json names this context."""

    @property
    def amplitude(self) -> float:
        """Factor of cosines and sines."""

    def scale_frequencies(self, frequencies: jax.Array, theta: float) -> jax.Array:
        """Returns the scaled frequencies [K/2] f32, radians a token.

        Args:
          frequencies: [K/2] f32.
          theta: their base.
        """


@dataclass(frozen=True)
class LinearScaling:
    """Positions are divided by a factor, > 0 (arXiv 2306.15595)."""

    factor: float
    kind: ClassVar[str] = "linear"
    amplitude: ClassVar[float] = 1.0

    def extend(self, context: int) -> int:
        return max(context, round(self.factor * context))

    def scale_frequencies(self, frequencies: jax.Array, theta: float) -> jax.Array:
        del theta
        return frequencies / self.factor


@dataclass(frozen=True)
class YarnScaling:
    """YaRN (arXiv 2309.00071): slow rotations are slowed, and logits are sharpened.

    Attributes:
      factor: divisor of slow frequencies, > 0.
      original_max_position_embeddings: original context, tokens.
      beta_fast: full turns in the original context above which rotations stay.
      beta_slow: full turns below which rotations are slowed in full.
      attention_factor: factor of cosines and sines; None: as in the paper's equation 22.
    """

    factor: float
    original_max_position_embeddings: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    kind: ClassVar[str] = "yarn"

    @property
    def amplitude(self) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        return 0.1 * math.log(max(self.factor, 1.0)) + 1.0

    def extend(self, context: int) -> int:
        return max(context, round(self.factor * self.original_max_position_embeddings))

    def scale_frequencies(self, frequencies: jax.Array, theta: float) -> jax.Array:
        half = len(frequencies)
        # The places in the list of frequencies that make so many turns, whole numbers outwards.
        low = max(math.floor(self._find_place(self.beta_fast, half, theta)), 0)
        high = min(math.ceil(self._find_place(self.beta_slow, half, theta)), 2 * half - 1)
        width = high - low if high > low else 0.001
        slowed_share = jnp.clip((jnp.arange(half, dtype=jnp.float32) - low) / width, 0.0, 1.0)
        return frequencies * (1 - slowed_share + slowed_share / self.factor)

    def _find_place(self, turns: float, half: int, theta: float) -> float:
        context = self.original_max_position_embeddings
        return half * math.log(context / (turns * 2 * math.pi)) / math.log(theta)


@dataclass(frozen=True)
class RopeScaling:
    """Context extension of Llama 3.1: it lowers the low frequencies.

    Attributes:
      factor: divisor of slow frequencies, > 0.
      low_freq_factor: full turns in the original context; rotations with fewer are slowed in full.
      high_freq_factor: full turns above which rotations stay; larger than `low_freq_factor`.
      original_max_position_embeddings: original context, tokens.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int
    kind: ClassVar[str] = "llama3"
    amplitude: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        if self.high_freq_factor <= self.low_freq_factor:
            raise ValueError(
                f"high_freq_factor={self.high_freq_factor} must be above {self.low_freq_factor}"
            )

    def extend(self, context: int) -> int:
        return context

    def scale_frequencies(self, frequencies: jax.Array, theta: float) -> jax.Array:
        del theta
        turns = self.original_max_position_embeddings * frequencies / (2 * math.pi)
        # 1 from `high_freq_factor` on (unchanged), 0 below `low_freq_factor` (divided by `factor`),
        # linear between the two.
        unscaled_share = (turns - self.low_freq_factor) / (
            self.high_freq_factor - self.low_freq_factor
        )
        unscaled_share = jnp.clip(unscaled_share, 0.0, 1.0)
        return frequencies * (unscaled_share + (1 - unscaled_share) / self.factor)


def check_scaling(kind: str, settings: Mapping[str, Any], file: pathlib.Path) -> None:
    """Raises InputError for another context extension than those of this file."""
    kinds = (LinearScaling.kind, YarnScaling.kind, RopeScaling.kind)
    # Of DeepSeek's models; other factors of cosines and sines.
    others = {"mscale", "mscale_all_dim", "truncate"} & set(settings)
    if kind not in kinds or (kind == YarnScaling.kind and others):
        # Not "remove rope_scaling": the model was trained with it.
        raise InputError(
            f"rotary scaling {kind!r:.80} with {sorted(settings)!r:.80} is not supported",
            key=file,
            fix=f"use a model with one of default, {', '.join(kinds)}",
        )


def read_scaling(kind: str, values: "JsonValues", context: int) -> Scaling:
    """Reads a context extension of config.json.

    Args:
      kind: `rope_type`.
      values: settings of the rotary embedding.
      context: longest text of the model, tokens.
    """
    original = "original_max_position_embeddings"
    factor = values.number("factor", 0.0)
    if kind == LinearScaling.kind:
        return LinearScaling(factor)
    if kind == YarnScaling.kind:
        given = values.get("attention_factor") is not None
        return YarnScaling(
            factor,
            values.size(original, context),
            values.number("beta_fast", 32.0),
            values.number("beta_slow", 1.0),
            values.number("attention_factor", 0.0) if given else None,
        )
    return RopeScaling(
        factor=factor,
        low_freq_factor=values.number("low_freq_factor", 0.0),
        high_freq_factor=values.number("high_freq_factor", 0.0),
        original_max_position_embeddings=values.size(original),
    )
