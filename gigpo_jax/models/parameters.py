"""The parameters of a decoder: their tree, random values, number, and names of axes."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from gigpo_jax.models.decoder_config import DELTA_LAYERS, DENSE_LAYERS, LAYERS, DecoderConfig
from gigpo_jax.models.families.family import find_family
from gigpo_jax.models.layer import Layer, Params, family_norm, layer_axes
from gigpo_jax.models.layers import draw_normal


class Decoder(nnx.Module):
    """The whole parameter tree: embedding, stacked layers, final norm and, if untied, a head."""

    def __init__(self, config: DecoderConfig, *, dtype: Any, rngs: nnx.Rngs):
        def make_layers(stack: str) -> Layer:
            @nnx.split_rngs(splits=len(config.layer_numbers(stack)))
            @nnx.vmap(in_axes=0)
            def make_stack(rngs: nnx.Rngs) -> Layer:
                return Layer(config, dtype=dtype, rngs=rngs, stack=stack)

            return make_stack(rngs)

        embedding_shape = (config.vocab_size, config.hidden_size)
        self.embed = nnx.Param(draw_normal(rngs, embedding_shape, dtype))
        self.layers = make_layers(LAYERS)
        if config.layer_numbers(DENSE_LAYERS):
            self.dense_layers = make_layers(DENSE_LAYERS)
        if config.delta is not None:
            self.delta_layers = make_layers(DELTA_LAYERS)
        self.final_norm = family_norm(config, config.hidden_size, dtype=dtype)
        if config.value_head:
            from gigpo_jax.models.value_head import ValueHead

            self.value_head = ValueHead(config.hidden_size, config.value_head, dtype=dtype)
        elif not config.tie_word_embeddings:
            self.head = nnx.Param(draw_normal(rngs, embedding_shape, dtype))
        if config.vision is not None:
            from gigpo_jax.models.vision.vision import VisionTower

            # Drawn last, so that the decoder of a seed is the same with and without a tower.
            self.vision = VisionTower(config.vision, config.hidden_size, dtype=dtype, rngs=rngs)


@functools.partial(jax.jit, static_argnames=("config", "dtype"))
def init_params(config: DecoderConfig, key: jax.Array, dtype: Any = jnp.float32) -> Params:
    """Draws random matrices with standard deviation 0.02; biases are 0 and norm scales 1.

    Returns:
      A nested dict of arrays; under `layers` every leaf has a first axis of length L.
    """
    model = Decoder(config, dtype=jnp.dtype(dtype), rngs=nnx.Rngs(params=key))
    return nnx.to_pure_dict(nnx.state(model, nnx.Param))


def abstract_params(config: DecoderConfig, dtype: Any = jnp.float32) -> Params:
    """Shapes and dtypes of `init_params`, without allocating anything."""
    # A lambda, because `eval_shape` would take config and dtype for arrays.
    return jax.eval_shape(lambda: init_params(config, jax.random.key(0), dtype))


def param_count(config: DecoderConfig) -> int:
    """Number of parameters; a tied embedding counts once."""
    return sum(leaf.size for leaf in jax.tree.leaves(abstract_params(config)))


def active_param_count(config: DecoderConfig) -> int:
    """Number of parameters that a token goes through."""
    count = param_count(config)
    if config.experts is None:
        return count
    from gigpo_jax.models.expert_numbers import count_idle_params

    return count - count_idle_params(config)


def logical_axes(config: DecoderConfig) -> Params:
    """Returns axis names of every parameter, for sharding.

    The result is a tree like the parameters. The names are "layers", "vocab", "embed", "heads"
    (H x K, one head after the other), "kv_heads" (G x K), "head" (K), "mlp", "value", "delta" (axes
    in `delta_layer.make_mixer`), and of experts "expert" (E), "expert_mlp" and "router" (E, scores
    of a router).
    """
    family = find_family(config.model_type)
    axes: Params = {
        "embed": ("vocab", "embed"),
        "layers": layer_axes(family, has_experts=config.experts is not None),
        "final_norm": {"scale": ("embed",)},
    }
    if config.layer_numbers(DENSE_LAYERS):
        axes[DENSE_LAYERS] = layer_axes(family, has_experts=False)
    if config.delta is not None:
        axes[DELTA_LAYERS] = layer_axes(family, has_experts=False, stack=DELTA_LAYERS)
    if config.vision is not None:
        from gigpo_jax.models.vision.vision import logical_axes as vision_axes

        axes["vision"] = vision_axes(config.vision)
    if config.value_head:
        axes["value_head"] = {"kernel": ("embed", "value"), "bias": ("value",)}
    elif not config.tie_word_embeddings:
        axes["head"] = ("vocab", "embed")
    return axes
