"""The shape of a decoder: Qwen2.5, Qwen3 or Llama 3.

They differ in `model_type`: Qwen2's queries, keys and values have biases; Qwen3 has a norm over each head of queries
and keys, whose scale the heads of a layer share; Llama has neither, and may scale its rotary frequencies.
"""

from dataclasses import dataclass

from gigpo_jax.models.rotary import RopeScaling
from gigpo_jax.models.vision_config import VisionConfig

MODEL_TYPES = ("qwen2", "qwen3", "llama")


@dataclass(frozen=True)
class Qwen2Config:
    """The shape of a model; `hf_config.py` maps the names to those of config.json.

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
      bos_token_id: as config.json has it, or None.
      eos_token_id: as config.json has it (one id or several), or None.
      value_head: whether the output is one value a token, in place of scores of tokens: a critic.
      model_type: one of `MODEL_TYPES`, as in config.json.
      rope_scaling: of the rotary frequencies; None for none.
      vision: the tower that reads images; None for none.
      for_cpu: whether bfloat16 is computed as in `on_cpu`, with its parameters; in XLA's own way it takes CPUs several
        times as long.
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
            raise ValueError(f"num_kv_heads={self.num_kv_heads} must divide num_heads={self.num_heads}")
        if self.head_dim % 2:
            raise ValueError(f"head_dim={self.head_dim} must be even for rotary embeddings")
        if self.vision is not None and 2 * sum(self.vision.sections) != self.head_dim:
            raise ValueError(f"mrope_section={list(self.vision.sections)} must sum to {self.head_dim // 2}")


# https://huggingface.co/Qwen (Qwen2.5-*-Instruct and Qwen3-*, config.json)
PUBLISHED: dict[str, Qwen2Config] = {
    "0.5b": Qwen2Config(151936, 896, 4864, 24, 14, 2, 64, bos_token_id=151643, eos_token_id=151645),
    "1.5b": Qwen2Config(151936, 1536, 8960, 28, 12, 2, 128, bos_token_id=151643, eos_token_id=151645),
    "3b": Qwen2Config(151936, 2048, 11008, 36, 16, 2, 128, bos_token_id=151643, eos_token_id=151645),
    "7b": Qwen2Config(
        152064, 3584, 18944, 28, 28, 4, 128, tie_word_embeddings=False, bos_token_id=151643, eos_token_id=151645
    ),
} | {
    name: Qwen2Config(
        151936,
        *sizes,
        tie_word_embeddings=sizes[0] < 4096,
        max_position_embeddings=40960,
        bos_token_id=151643,
        eos_token_id=151645,
        model_type="qwen3",
    )
    for name, sizes in {
        "qwen3-0.6b": (1024, 3072, 28, 16, 8, 128),
        "qwen3-1.7b": (2048, 6144, 28, 16, 8, 128),
        "qwen3-4b": (2560, 9728, 36, 32, 8, 128),
        "qwen3-8b": (4096, 12288, 36, 32, 8, 128),
    }.items()
}
