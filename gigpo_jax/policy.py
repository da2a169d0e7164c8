"""The policy of a run: a model's shape, its sharded parameters and its tokenizer."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from gigpo_jax.core.errors import InputError
from gigpo_jax.devices.mesh import gathered, row_constraint, shard_parameters
from gigpo_jax.models import decoder
from gigpo_jax.models.attention import attention, kernels_for, reads_bands
from gigpo_jax.models.cache import cache_length
from gigpo_jax.models.files.folders import model_folder
from gigpo_jax.models.files.hf_config import read_config
from gigpo_jax.models.files.weights import load_hf
from gigpo_jax.models.text.tokenizer import Tokenizer, check_vocabulary, load_tokenizer
from gigpo_jax.rl.logprobs import OutputEmbedding, PaddedEmbedding

if TYPE_CHECKING:
    from gigpo_jax.models.lora import LoraConfig

# Bytes that the learner's signals add for a config and the shape of its policy, by purpose. They
# are split as the parameters are; `devices.memory.REPLAYED` is split as the rows are.
SignalBytes = Callable[[ConfigDict, decoder.DecoderConfig], Mapping[str, int]]


@dataclass(frozen=True)
class Policy:
    """A language model with its tokenizer, and with its adapter if one is trained.

    Attributes:
      config: Shape of the model.
      params: Nested dict of arrays, in `model.param_dtype`, sharded over the mesh.
      tokenizer: Tokenizer of the model.
      adapter: Low-rank pairs to train in place of `params`, float32, sharded likewise; None: all
        parameters are trained.
      scale: Factor of the adapter's output.
      base: Checksum of the tensors of `model.path` that an adapter belongs to; "" without one.
      engine_split_size: Number of devices that split an in-process engine's weights, as from
        `engine_split.engine_split_size`; 0: no estimate of memory has chosen it.
    """

    config: decoder.DecoderConfig
    params: Any
    tokenizer: Tokenizer
    adapter: Any = None
    scale: float = 1.0
    base: str = ""
    engine_split_size: int = 0

    @property
    def trained(self) -> Any:
        """The parameters that updates change."""
        return self.params if self.adapter is None else self.adapter

    @property
    def frozen(self) -> Any:
        """The parameters that updates do not change; None if all are trained."""
        return None if self.adapter is None else self.params

    def whole(self, trained: Any) -> Any:
        """Returns all parameters, the trained ones replaced by `trained`, for an engine or a file.

        Frozen parameters are not copied.
        """
        if self.adapter is None:
            return trained
        from gigpo_jax.models import lora

        # Engines get pairs of scale 1. The product is cheap, as pairs are small, and is made once.
        scaled = jax.jit(
            lora.scale_adapter, out_shardings=jax.tree.map(lambda x: x.sharding, trained)
        )
        return lora.attach_adapter(self.params, scaled(trained, self.scale), 1.0)


def load_policy(
    config: ConfigDict,
    mesh: jax.sharding.Mesh,
    signal_bytes: SignalBytes | None = None,
    *,
    samples: bool = True,
    trains: bool = True,
) -> Policy:
    """Reads the policy from `model.path`.

    Args:
      config: Resolved config.
      mesh: Mesh of the learner.
      signal_bytes: Memory of the learner's signals; None: there are none.
      samples: Whether an engine will sample from it.
      trains: Whether memory is needed for updates too.

    Raises:
      InputError: no path, a folder without a language model and a tokenizer that fit together, or a
        mesh or memory that cannot hold the model.
    """
    path = config.model.path
    folder = model_folder(path, config.model.revision)
    tokenizer = load_tokenizer(folder, enable_thinking=config.model.enable_thinking)
    shape = read_config(folder)
    num_tokens = check_vocabulary(tokenizer, shape.vocab_size, path)
    if shape.value_head:
        raise InputError(
            "a critic, which scores no tokens",
            key="config.model.path",
            value=repr(path),
            fix="name a language model",
        )
    check_shape(config, shape)
    # The template stands in every prompt: without room beside it no observation would be seen.
    template_tokens = len(tokenizer.encode_chat(""))
    if config.sampling.max_prompt_tokens <= template_tokens:
        raise InputError(
            f"the chat template of {path!r} alone takes {template_tokens} tokens",
            key="config.sampling.max_prompt_tokens",
            value=config.sampling.max_prompt_tokens,
            fix="use more",
        )
    # All checks come before the weights are read, which takes minutes for a large model.
    signals = signal_bytes(config, shape) if signal_bytes is not None else {}
    tensor = _engine_devices(config, shape, mesh, signals, samples=samples, trains=trains)
    platform = mesh.devices.flat[0].platform
    if platform != "cpu" or mesh.size > 1 or signals or not is_small(config, shape):
        from gigpo_jax.devices.memory import check_memory

        sizes = (mesh.size, jax.process_count(), tensor)
        check_memory(config, shape, *sizes, signals=signals, trains=trains, platform=platform)
    dtype = jnp.dtype(config.model.param_dtype)
    adapter = None
    scale = 1.0
    base = ""
    pair_shape = lora_config(config)
    if pair_shape is not None:
        from gigpo_jax.devices.adapter import start_adapter
        from gigpo_jax.models.files.checksum import folder_checksum

        adapter = start_adapter(config, shape, mesh, pair_shape)
        scale = pair_shape.scale
        base = folder_checksum(folder)
    shape, params = load_hf(folder, dtype=dtype, shardings=param_shardings(shape, mesh))
    shape = replace(shape, num_tokens=num_tokens)
    return Policy(shape, params, tokenizer, adapter, scale, base, tensor)


def _engine_devices(
    config: ConfigDict,
    shape: decoder.DecoderConfig,
    mesh: jax.sharding.Mesh,
    signals: Mapping[str, int],
    *,
    samples: bool,
    trains: bool,
) -> int:
    """Returns how many devices split the engine's weights; checks that they can."""
    if mesh.size == 1 and not config.engine.devices and config.engine.tensor <= 1:
        return 1
    from gigpo_jax.devices.engine_split import check_engine, engine_split_size

    tensor = engine_split_size(config, shape, mesh, signals=signals, trains=trains)
    if samples and config.engine.name == "jax":
        check_engine(config, shape, mesh, tensor)
    return tensor


def is_small(config: ConfigDict, shape: decoder.DecoderConfig) -> bool:
    """Whether a plain model on one CPU needs under 1 GiB; `devices.memory` is not asked then."""
    if shape.experts or shape.vision or shape.layer_types or config.model.lora.rank:
        return False
    row_tokens = config.batch.rows * config.batch.row_length
    chunk = min(config.batch.logprob_chunk, row_tokens)
    slot_tokens = config.engine.slots * cache_length(
        longest_text(config), config.engine.prefill_chunk
    )
    # Parameters of policy, reference, gradients and moments; of each policy ahead and of its
    # engine; activations without rematerialisation, logits, keys and values.
    numbers = (
        decoder.param_count(shape) * (6 + 2 * config.train.max_staleness)
        + row_tokens * shape.num_layers * (12 * shape.hidden_size + 4 * shape.intermediate_size)
        + chunk * shape.vocab_size * 2
        + slot_tokens * shape.num_layers * shape.num_kv_heads * shape.head_dim * 2
    )
    return 4 * numbers < 2**30


def check_shape(config: ConfigDict, shape: decoder.DecoderConfig) -> None:
    """Raises InputError for settings that the model does not take."""
    positions = shape.longest_text
    if longest_text(config) > positions:
        sampling = config.sampling
        raise InputError(
            f"with max_response_tokens={sampling.max_response_tokens} texts have up to "
            f"{longest_text(config)} tokens, the model has {positions} positions "
            "(max_position_embeddings in config.json)",
            key="config.sampling.max_prompt_tokens",
            value=sampling.max_prompt_tokens,
            fix="use fewer tokens or a model of longer texts",
        )
    model = config.model
    has_settings = config.batch.share_prefixes or model.replay_routes or model.lora.vision
    if shape.experts is not None or has_settings:
        from gigpo_jax.config.model_checks import check_model_settings

        check_model_settings(config, shape, longest_tree(config) if shares_prefixes(config) else 0)


def lora_config(config: ConfigDict) -> "LoraConfig | None":
    """Returns the shape of the adapter of `model.lora`, or None if its rank is 0."""
    settings = config.model.lora
    if not settings.rank:
        return None
    from gigpo_jax.models.lora import LoraConfig

    return LoraConfig.from_settings(settings)


def param_shardings(shape: decoder.DecoderConfig, mesh: jax.sharding.Mesh) -> Any:
    """Returns the sharding of each parameter by the model's axis names and `mesh.RULES`."""
    return shard_parameters(mesh, decoder.logical_axes(shape), decoder.abstract_params(shape))


def trained_shardings(
    config: ConfigDict, shape: decoder.DecoderConfig, mesh: jax.sharding.Mesh
) -> Any:
    """The sharding of each of `Policy.trained`."""
    adapter = lora_config(config)
    if adapter is None:
        return param_shardings(shape, mesh)
    from gigpo_jax.devices.adapter import adapter_shardings

    return adapter_shardings(shape, adapter, mesh)


def forward_function(
    config: ConfigDict, shape: decoder.DecoderConfig, mesh: jax.sharding.Mesh
) -> Callable[..., tuple[jax.Array, OutputEmbedding]]:
    """Builds the forward pass of the policy, an `rl.update.Forward`.

    Rows stay split over the mesh in every layer; parameters are sharded as in `trained_shardings`.
    """
    adapter = lora_config(config)
    trunk = trunk_function(config, shape, mesh)

    def forward(
        trained: Any,
        frozen: Any,
        tokens: jax.Array,
        positions: jax.Array,
        segment_ids: jax.Array,
        images: Any,
        routes: jax.Array | None = None,
    ) -> tuple[jax.Array, OutputEmbedding]:
        params = trained
        if adapter is not None:
            from gigpo_jax.models.lora import attach_adapter

            params = attach_adapter(frozen, trained, adapter.scale)
        hidden, params = trunk(params, tokens, positions, segment_ids, images, routes)
        matrix = decoder.output_embedding(shape, params)
        return hidden, PaddedEmbedding(matrix, shape.num_tokens) if shape.num_tokens else matrix

    return forward


def trunk_function(
    config: ConfigDict, shape: decoder.DecoderConfig, mesh: jax.sharding.Mesh
) -> Callable[..., tuple[jax.Array, Any]]:
    """Builds a model's forward pass up to its head.

    Its arguments are parameters, tokens [B, T], positions, segment_ids ([B, 2, T] for trees of at
    most `longest_tree` tokens), images and routes (or none). Its results are hidden states
    [B, T, D] and the parameters as a head uses them.
    """
    model = config.model
    embedding = gathered(param_shardings(shape, mesh)["embed"])
    kernels = kernels_for(mesh.devices.flat[0])
    kernel = functools.partial(attention, kernels=kernels)
    attend: Callable[..., jax.Array] = kernel
    if kernels != "cpu":
        from gigpo_jax.devices.per_device import on_each_device

        # XLA splits its own products; other kernels have to see one device's rows and heads.
        attend = on_each_device(mesh, kernel, shape.num_kv_heads)
    experts = None
    if shape.experts is not None:
        from gigpo_jax.devices.per_device import learner_experts

        experts = learner_experts(mesh, kernels, shape.experts)
    execution = decoder.Execution(
        dtype=jnp.dtype(model.compute_dtype),
        remat=model.remat,
        unroll=model.unroll,
        max_segment=longest_text(config),
        attention=attend,
        experts=experts,
        constrain=row_constraint(mesh),
    )

    def trunk(
        params: Any,
        tokens: jax.Array,
        positions: jax.Array,
        segment_ids: jax.Array,
        images: Any,
        routes: jax.Array | None = None,
    ) -> tuple[jax.Array, Any]:
        # Used gathered, stored sharded: XLA would replicate the result and the
        # gradient of the lookup.
        params = params | {"embed": jax.lax.with_sharding_constraint(params["embed"], embedding)}
        if images is not None:
            # [B, 3, T] -> [3, B, T]: batches are split by their first axis, the decoder has
            # the three first.
            positions = jnp.moveaxis(positions, 1, 0)
        settings = execution
        if segment_ids.ndim == 3:
            settings = replace(execution, max_segment=longest_tree(config))
        hidden = decoder.hidden_states(
            shape, params, tokens, positions, segment_ids, settings, images, routes
        )
        return hidden, params

    return trunk


def longest_tree(config: ConfigDict) -> int:
    """Returns the tokens of the largest tree of texts that attention has room for."""
    row = config.batch.row_length
    return longest_text(config) if reads_bands(row, longest_text(config)) else row


def shares_prefixes(config: ConfigDict) -> bool:
    """Whether a run has texts that begin alike as trees."""
    # A token of several texts would need the experts of each.
    return config.batch.share_prefixes and not config.model.replay_routes


def longest_text(config: ConfigDict) -> int:
    """Returns the tokens of the longest prompt and response; a sample's input has one less."""
    return config.sampling.max_prompt_tokens + config.sampling.max_response_tokens
