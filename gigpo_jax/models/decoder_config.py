"""The shape of a decoder: Qwen2.5, Qwen3 or Llama 3.

They differ in `model_type`: Qwen2's queries, keys and values have biases; Qwen3 has a norm over
each head of queries and keys, whose scale the heads of a layer share; Llama has neither, and may
scale its rotary frequencies.
"""

from dataclasses import dataclass

from gigpo_jax.models.rotary import RopeScaling
from gigpo_jax.models.vision.vision_config import VisionConfig

MODEL_TYPES = ("qwen2", "qwen3", "llama")


@dataclass(frozen=True)
class DecoderConfig:
    """The shape of a model.

    `hf_config.py` maps the names to those of config.json.

    Attributes:
      vocab_size: V, rows of the embedding.
      hidden_size: D, width of the residual stream.
      intermediate_size: F, width inside the SwiGLU block.
      num_layers: L.
      num_heads: H, query heads.
      num_kv_heads: G, key/value heads; divides H.
      head_dim: K, even.
      rope_theta: base of the rotary frequencies.
      rms_norm_eps: added to the mean square before the root.
      tie_word_embeddings: whether the output uses the input embedding.
      max_position_embeddings: longest sequence the model was trained for, in tokens.
      bos_token_id: token id in config.json, or None.
      eos_token_id: token id or ids in config.json, or None.
      value_head: whether the output is one value a token, in place of scores of tokens: a critic.
      model_type: one of `MODEL_TYPES`, as in config.json.
      rope_scaling: scaling of the rotary frequencies; None for none.
      vision: shape of the tower that reads images; None for none.
      for_cpu: whether bfloat16 is computed by the functions of `on_cpu`, with parameters in their
        layout; XLA's own way takes CPUs several times as long.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope_theta: float = 1_000_000.0
    rms_norm_eps: float = 1e-6
    tie_word_embeddings: bool = True
    max_position_embeddings: int = 32768
    bos_token_id: int | None = None
    eos_token_id: int | tuple[int, ...] | None = None
    value_head: bool = False
    model_type: str = "qwen2"
    rope_scaling: RopeScaling | None = None
    vision: VisionConfig | None = None
    for_cpu: bool = False

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_kv_heads={self.num_kv_heads} must divide num_heads={self.num_heads}"
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim={self.head_dim} must be even for rotary embeddings")
        if self.vision is not None and 2 * sum(self.vision.sections) != self.head_dim:
            raise ValueError(
                f"mrope_section={list(self.vision.sections)} must sum to {self.head_dim // 2}"
            )


def _qwen2_5(
    hidden: int,
    inner: int,
    layers: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    vocab: int = 151936,
) -> DecoderConfig:
    return DecoderConfig(
        vocab,
        hidden,
        inner,
        layers,
        heads,
        kv_heads,
        head_dim,
        # The published models below 7B have one matrix for input and output.
        tie_word_embeddings=hidden < 3584,
        bos_token_id=151643,
        eos_token_id=151645,
    )


def _qwen3(hidden: int, inner: int, layers: int, heads: int) -> DecoderConfig:
    return DecoderConfig(
        151936,
        hidden,
        inner,
        layers,
        heads,
        num_kv_heads=8,
        head_dim=128,
        # The published models below 8B have one matrix for input and output.
        tie_word_embeddings=hidden < 4096,
        max_position_embeddings=40960,
        bos_token_id=151643,
        eos_token_id=151645,
        model_type="qwen3",
    )


# https://huggingface.co/Qwen (Qwen2.5-*-Instruct and Qwen3-*, config.json)
PUBLISHED: dict[str, DecoderConfig] = {
    "0.5b": _qwen2_5(896, 4864, 24, 14, 2, 64),
    "1.5b": _qwen2_5(1536, 8960, 28, 12, 2, 128),
    "3b": _qwen2_5(2048, 11008, 36, 16, 2, 128),
    "7b": _qwen2_5(3584, 18944, 28, 28, 4, 128, vocab=152064),
    "qwen3-0.6b": _qwen3(1024, 3072, 28, 16),
    "qwen3-1.7b": _qwen3(2048, 6144, 28, 16),
    "qwen3-4b": _qwen3(2560, 9728, 36, 32),
    "qwen3-8b": _qwen3(4096, 12288, 36, 32),
}
