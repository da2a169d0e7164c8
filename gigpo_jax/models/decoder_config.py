"""The shape of a decoder: sizes, and the kinds of its layers.

`families` has what models of one `model_type` have in common.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from gigpo_jax.models.delta_config import DeltaConfig
    from gigpo_jax.models.expert_config import ExpertConfig
    from gigpo_jax.models.rope_scaling import Scaling
    from gigpo_jax.models.vision.vision_config import VisionConfig

LAYERS = "layers"  # key of the stacked layers in the parameters
DENSE_LAYERS = "dense_layers"  # key of layers without experts in a model with experts
DELTA_LAYERS = "delta_layers"  # key of layers without attention
STACKS = (LAYERS, DENSE_LAYERS, DELTA_LAYERS)
# Kinds of layers; all but the second one have these names in config.json too.
FULL = "full_attention"
UNROTATED = "unrotated_attention"
SLIDING = "sliding_attention"
LINEAR = "linear_attention"


class AttentionKind(NamedTuple):
    """Attention of some layers.

    Attributes:
      theta: base of the rotary frequencies; 0: queries and keys are not rotated.
      scaling: scaling of these frequencies; None for none.
      window: tokens that a query sees, its own included; 0: all earlier ones.
    """

    theta: float
    scaling: "Scaling | None" = None
    window: int = 0


class LayerSpan(NamedTuple):
    """Neighbouring layers of one stack, which run in one loop.

    Attributes:
      stack: key of the stack in the parameters that holds them.
      start: index of the first one in the stack.
      stop: index behind the last one in the stack.
      first: index of the first one in the model.
      place: index of the first one in the cache.
      kind: attention of the first one; of all in a model of one kind, see `layer_kinds`.
    """

    stack: str
    start: int
    stop: int
    first: int
    place: int
    kind: AttentionKind


@dataclass(frozen=True)
class DecoderConfig:
    """The shape of a model, whose names `hf_config.py` maps to the names in config.json.

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
      value_head: number of values a token that are the output of a critic, in place of scores of
        tokens; 0: a language model.
      model_type: one of `families.family.FAMILIES`, as in config.json.
      rope_scaling: scaling of the rotary frequencies; None for none.
      vision: shape of the tower that reads images; None for none.
      experts: the experts, of model_type "qwen3_moe" alone; None for none.
      for_cpu: whether bfloat16 is computed by the functions of `on_cpu`, with parameters in their
        layout; XLA's own way takes CPUs several times as long.
      num_tokens: number of ids that have a token. Rows of the embedding behind them are padding:
        they are never sampled and have probability 0. 0: all V have one.
      layer_types: kind of each layer: FULL, UNROTATED, SLIDING or LINEAR; (): all are FULL.
      sliding_window: tokens that a query of SLIDING layers sees, its own included.
      sliding_theta: base of the rotary frequencies of SLIDING layers.
      query_scalar: scores are multiplied by its inverse root; 0: K.
      rotary_dim: first numbers of a head that are rotated; 0: K.
      delta: the LINEAR layers, which have no attention; None for none.
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
    value_head: int = 0
    model_type: str = "qwen2"
    rope_scaling: "Scaling | None" = None
    vision: "VisionConfig | None" = None
    experts: "ExpertConfig | None" = None
    for_cpu: bool = False
    num_tokens: int = 0
    layer_types: tuple[str, ...] = ()
    sliding_window: int = 0
    sliding_theta: float = 10_000.0
    query_scalar: int = 0
    rotary_dim: int = 0
    delta: "DeltaConfig | None" = None

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_kv_heads={self.num_kv_heads} must divide num_heads={self.num_heads}"
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim={self.head_dim} must be even for rotary embeddings")
        is_special = self.layer_types or self.vision or self.experts or self.delta
        if is_special or self.model_type == "qwen3_moe":
            from gigpo_jax.models.config_checks import check_special_layers

            check_special_layers(self)

    @property
    def longest_text(self) -> int:
        """Tokens of the longest text: a context extension lengthens `max_position_embeddings`."""
        context = self.max_position_embeddings
        return context if self.rope_scaling is None else self.rope_scaling.extend(context)

    @property
    def attention_kinds(self) -> tuple[AttentionKind, ...]:
        """The kind of attention of each layer; full attention for layers without any."""
        kinds = {
            FULL: AttentionKind(self.rope_theta, self.rope_scaling),
            LINEAR: AttentionKind(self.rope_theta, self.rope_scaling),
            UNROTATED: AttentionKind(0.0),
            SLIDING: AttentionKind(self.sliding_theta, window=self.sliding_window),
        }
        return tuple(kinds[name] for name in self.layer_types or (FULL,) * self.num_layers)

    @property
    def num_window_layers(self) -> int:
        """Number of layers that see a window of tokens."""
        return self.layer_types.count(SLIDING)

    @property
    def num_delta_layers(self) -> int:
        """Number of layers that have a state in place of keys and values."""
        return self.layer_types.count(LINEAR)

    @property
    def layer_spans(self) -> tuple[LayerSpan, ...]:
        """The layers in their order, as one span where all are of one stack."""
        spans: list[LayerSpan] = []
        ends = dict.fromkeys(STACKS, 0)
        for layer, kind in enumerate(self.attention_kinds):
            has_experts = self.experts is None or self.experts.has_experts(layer)
            stack = LAYERS if has_experts else DENSE_LAYERS
            if self.layer_types and self.layer_types[layer] == LINEAR:
                stack = DELTA_LAYERS
            end = ends[stack]
            if not spans or spans[-1].stack != stack:
                # Models with layers without attention have all others in one stack.
                place = layer if self.delta is None else end
                spans.append(LayerSpan(stack, end, end, layer, place, kind))
            ends[stack] += 1
            spans[-1] = spans[-1]._replace(stop=ends[stack])
        return tuple(spans)

    def layer_numbers(self, stack: str) -> tuple[int, ...]:
        """Indices in the model of the layers of a stack."""
        numbers: list[int] = []
        for span in self.layer_spans:
            if span.stack == stack:
                numbers += range(span.first, span.first + span.stop - span.start)
        return tuple(numbers)
