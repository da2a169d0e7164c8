"""One decoder layer: attention, then a gated MLP or experts, each behind a norm."""

import functools
from collections.abc import Callable, Collection
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from gigpo_jax.models.decoder_config import DELTA_LAYERS, LAYERS, DecoderConfig
from gigpo_jax.models.execution import Experts
from gigpo_jax.models.families.family import Family, find_family
from gigpo_jax.models.layers import ACTIVATIONS, Linear, RMSNorm
from gigpo_jax.models.rotary import Rotary, rotate

Params = dict[str, Any]
Select = Callable[[jax.Array], jax.Array]  # selects tokens of an array


def select_all(x: jax.Array) -> jax.Array:
    """Selects all tokens of an array."""
    return x


def select_last(lengths: jax.Array) -> Select:
    """Selects the last token of each row, x [B, T, D] with `lengths` [B] -> [B, D]."""
    # A row that is not filled has length 0; its result is not used.
    index = jnp.maximum(lengths - 1, 0)[:, None, None]
    return lambda x: jnp.take_along_axis(x, index, axis=1)[:, 0]


class Layer(nnx.Module):
    """One decoder layer.

    Attention is an argument, so training, prefill and decoding share the layer. The linear layers
    in `adapted` have a low-rank pair (`models.lora`). In a model with experts the layers of the
    stack "layers" have a router and experts, the layers of "dense_layers" one SwiGLU block. The
    layers of "delta_layers" have no attention.
    """

    def __init__(
        self,
        config: DecoderConfig,
        *,
        dtype: Any,
        rngs: nnx.Rngs,
        adapted: Collection[str] = (),
        stack: str = LAYERS,
    ):
        width = config.hidden_size
        inner = config.intermediate_size
        head_dim = config.head_dim

        def make_linear(name: str, inputs: int, outputs: int, bias: bool = False) -> Linear:
            return Linear(
                inputs,
                outputs,
                bias=bias,
                dtype=dtype,
                rngs=rngs,
                adapted=name in adapted,
                for_cpu=config.for_cpu,
            )

        family = find_family(config.model_type)
        make_norm = functools.partial(family_norm, config, dtype=dtype)
        self.head_dim = head_dim
        self.for_cpu = config.for_cpu
        self.activate = ACTIVATIONS[family.activation]
        # The root of K is the divisor of all attention kernels.
        self.query_factor = (head_dim / (config.query_scalar or head_dim)) ** 0.5
        # The order of these lines is the order in which random keys are drawn.
        self.attention_norm = make_norm(width)
        if stack == DELTA_LAYERS:
            from gigpo_jax.models.delta_layer import make_mixer

            for name, part in make_mixer(config, make_linear, dtype=dtype, rngs=rngs).items():
                setattr(self, name, part)
        else:
            self._make_attention(config, make_linear, make_norm)
        self.mlp_norm = make_norm(width)
        if family.result_norms:
            self.attention_result_norm = make_norm(width)
            self.mlp_result_norm = make_norm(width)
        if config.experts is not None and stack == LAYERS:
            from gigpo_jax.models.experts import make_experts

            for name, part in make_experts(width, config.experts, dtype=dtype, rngs=rngs).items():
                setattr(self, name, part)
        else:
            self.gate = make_linear("gate", width, inner)
            self.up = make_linear("up", width, inner)
            self.down = make_linear("down", inner, width)

    def _make_attention(
        self, config: DecoderConfig, make_linear: Callable[..., Linear], make_norm: Callable
    ) -> None:
        family = find_family(config.model_type)
        width = config.hidden_size
        query_width = config.num_heads * config.head_dim
        kv_width = config.num_kv_heads * config.head_dim
        bias = family.qkv_biases
        self.gated = family.gated_attention
        # A head's gate follows its query.
        self.query = make_linear("query", width, query_width * (1 + self.gated), bias)
        self.key = make_linear("key", width, kv_width, bias)
        self.value = make_linear("value", width, kv_width, bias)
        if family.head_norms:
            self.query_norm = make_norm(config.head_dim)
            self.key_norm = make_norm(config.head_dim)
        self.out = make_linear("out", query_width, width)

    def __call__(
        self,
        x: jax.Array,
        angles: Rotary,
        attend: Callable,
        select: Select = select_all,
        experts: Experts | None = None,
        routes: jax.Array | None = None,
    ) -> tuple[jax.Array, Any, jax.Array | None]:
        """Runs the layer.

        Args:
          x: [..., D] residual stream in the compute dtype.
          angles: rotation of the layer's queries and keys, one of `rotary.model_angles`.
          attend: function (query [..., H, K], key [..., G, K], value [..., G, K]) -> (mixed values
            [..., H, K], any second result); without attention the `mix` of `apply_mixer`.
          select: selection of the tokens that everything after attention is computed for; it takes
            the residual stream and the mixed values [..., H * K].
          experts: function for the experts; None: `experts.apply_experts`.
          routes: experts of each selected token [..., k] in place of those that the router would
            choose; None: the router chooses.

        Returns:
          The residual stream [..., D] of the selected tokens, the second result of `attend`, and
          the experts of these tokens [..., k] i32, None for a layer without any.
        """
        y = self.attention_norm(x)
        if hasattr(self, "query"):
            query, key, value, gate = self._project_heads(y, angles)
            mixed, extra = attend(query, key, value)
            mixed = select(mixed.reshape(*mixed.shape[:-2], -1))
            y = self.out(mixed if gate is None else mixed * jax.nn.sigmoid(select(gate)))
        else:
            from gigpo_jax.models.delta_layer import apply_mixer

            y, extra = apply_mixer(self, y, attend, select)
        # Keys and values of all tokens are made by now; what follows works on each token alone.
        x = select(x)
        if hasattr(self, "attention_result_norm"):
            y = self.attention_result_norm(y)
        x = x + y

        y = self.mlp_norm(x)
        ids = None
        if hasattr(self, "router"):
            from gigpo_jax.models.experts import apply_layer

            y, ids = apply_layer(self, y, experts, routes)
        else:
            y = self._apply_mlp(y)
        if hasattr(self, "mlp_result_norm"):
            y = self.mlp_result_norm(y)
        return x + y, extra, ids

    def _project_heads(
        self, y: jax.Array, angles: Rotary
    ) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array | None]:
        """Returns queries, keys and values of attention, and gates [..., H * K] of its result."""
        query = self.query(y)
        gate = None
        if self.gated:
            pairs = query.reshape(*query.shape[:-1], -1, 2, self.head_dim)
            gate = pairs[..., 1, :].reshape(*query.shape[:-1], -1)
            query = pairs[..., 0, :]
        query = self._split_heads(query.reshape(*y.shape[:-1], -1))
        key = self._split_heads(self.key(y))
        value = self._split_heads(self.value(y))
        # Before the rotation, as in the published Qwen3: the norm's scale differs along the head,
        # so the two do not commute.
        if hasattr(self, "query_norm"):
            query = self.query_norm(query)
            key = self.key_norm(key)
        if self.query_factor != 1.0:
            query = query * jnp.asarray(self.query_factor, query.dtype)
        return rotate(query, angles), rotate(key, angles), value, gate

    def _apply_mlp(self, y: jax.Array) -> jax.Array:
        # In bfloat16 XLA's CPU backend would convert and round at every operation of the fusion.
        gate = self.gate(y).astype(jnp.float32 if self.for_cpu else y.dtype)
        return self.down((self.activate(gate) * self.up(y)).astype(y.dtype))

    def _split_heads(self, x: jax.Array) -> jax.Array:
        return x.reshape(*x.shape[:-1], -1, self.head_dim)


def layer_axes(family: Family, *, has_experts: bool, stack: str = LAYERS) -> Params:
    """Names of the axes of a stack of layers, as for `decoder.logical_axes`."""
    axes: Params = {}
    if stack == DELTA_LAYERS:
        from gigpo_jax.models.delta_layer import mixer_axes

        axes = mixer_axes()
    else:
        axes["out"] = {"kernel": ("layers", "heads", "embed")}
        for name, outputs in {"query": "heads", "key": "kv_heads", "value": "kv_heads"}.items():
            axes[name] = {"kernel": ("layers", "embed", outputs)}
            if family.qkv_biases:
                axes[name]["bias"] = ("layers", outputs)
        for name in ("query_norm", "key_norm") if family.head_norms else ():
            axes[name] = {"scale": ("layers", "head")}
    if has_experts:
        from gigpo_jax.models.experts import EXPERT_AXES

        axes |= EXPERT_AXES
    else:
        for name in ("gate", "up"):
            axes[name] = {"kernel": ("layers", "embed", "mlp")}
        axes["down"] = {"kernel": ("layers", "mlp", "embed")}
    norms = ["attention_norm", "mlp_norm"]
    if family.result_norms:
        norms += ["attention_result_norm", "mlp_result_norm"]
    for name in norms:
        axes[name] = {"scale": ("layers", "embed")}
    return axes


def family_norm(config: DecoderConfig, width: int, *, dtype: Any) -> RMSNorm:
    """Makes a norm of the model's family."""
    offset = find_family(config.model_type).norm_offset
    return RMSNorm(width, eps=config.rms_norm_eps, dtype=dtype, offset=offset)


@functools.cache
def layer_graph(config: DecoderConfig, adapted: tuple[str, ...], stack: str) -> Any:
    """Returns the graph of a `Layer`, for `nnx.merge` with the parameters of one layer."""
    # Dtype and keys have no effect: the graph is the structure alone. It is cached, because every
    # trace of a model asks for it.
    make_layer = functools.partial(Layer, config, dtype=jnp.float32, adapted=adapted, stack=stack)
    return nnx.graphdef(nnx.eval_shape(lambda: make_layer(rngs=nnx.Rngs(0))))
