"""The policy of a run: a model's shape, its sharded parameters and its tokenizer."""

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from absl import logging
from ml_collections import ConfigDict

from gigpo_jax.config.packaged import located
from gigpo_jax.errors import InputError
from gigpo_jax.models import hub, lora, qwen2
from gigpo_jax.models.adapter_file import load_adapter, save_adapter
from gigpo_jax.models.attention import attention, kernels_for
from gigpo_jax.models.checksum import folder_checksum
from gigpo_jax.models.hf_config import read_config
from gigpo_jax.models.layers import INITIALIZER_RANGE
from gigpo_jax.models.tokenizer import Tokenizer, check_fits, load_tokenizer, word_tokenizer
from gigpo_jax.models.vision_config import IMAGE_TOKENS, VisionConfig
from gigpo_jax.models.weights import load_hf, save_hf
from gigpo_jax.run import partition
from gigpo_jax.run.memory import check_engine, check_memory, engine_tensor

ADAPTER = "adapter"  # in an exported folder: the adapter alone


@dataclass(frozen=True)
class Policy:
    """What turns prompts into distributions over responses.

    Attributes:
      config: the model's shape.
      params: nested dict of arrays, in `model.param_dtype`, sharded over the mesh.
      tokenizer: text <-> token ids.
      adapter: low-rank pairs to train in place of `params`, float32, sharded likewise; None: all are trained.
      scale: what the pairs add is multiplied by it.
      base: with an adapter the checksum of `model.path`'s tensors: which model it belongs to; "" otherwise.
    """

    config: qwen2.Qwen2Config
    params: Any
    tokenizer: Tokenizer
    adapter: Any = None
    scale: float = 1.0
    base: str = ""

    @property
    def trained(self) -> Any:
        """The parameters that updates change."""
        return self.params if self.adapter is None else self.adapter

    @property
    def frozen(self) -> Any:
        """The parameters that they do not change; None if all are trained."""
        return None if self.adapter is None else self.params

    def whole(self, trained: Any) -> Any:
        """The policy with other trained parameters, for an engine or a file; the frozen ones are not copied."""
        if self.adapter is None:
            return trained
        scaled = jax.jit(lora.scaled, out_shardings=jax.tree.map(lambda x: x.sharding, trained))
        return lora.attach(self.params, scaled(trained, self.scale), 1.0)


def load_policy(config: ConfigDict, mesh: jax.sharding.Mesh, *, samples: bool = True) -> Policy:
    """Reads the policy from `model.path`; `samples`: an engine will sample from it.

    Raises:
      InputError: no path, or a folder that does not hold a language model and a tokenizer that fit together, or a
        mesh or memory that cannot hold it.
    """
    path = config.model.path
    if not path:
        raise InputError(
            "config.model.path='': a folder with a model is needed (config.json, *.safetensors, tokenizer), or a model "
            "of the Hub (ORG/NAME); --mode=sft makes one from nothing"
        )
    folder = model_folder(path, config.model.revision)
    tokenizer = load_tokenizer(folder, enable_thinking=config.model.enable_thinking)
    shape = read_config(folder)
    check_fits(tokenizer, shape.vocab_size, path)
    if shape.value_head:
        raise InputError(f"config.model.path={path!r}: a critic, which scores no tokens; name a language model")
    check_vision(config, shape.vision)
    template = len(tokenizer.encode_chat(""))
    if config.sampling.max_prompt_tokens <= template:
        raise InputError(
            f"config.sampling.max_prompt_tokens={config.sampling.max_prompt_tokens}: the chat template of {path!r} "
            f"alone takes {template} tokens; use more"
        )
    tensor = engine_tensor(config, shape, mesh)
    if samples and config.engine.name == "jax":
        check_engine(config, shape, mesh, tensor)
    check_memory(config, shape, mesh.size, jax.process_count(), tensor)
    dtype = jnp.dtype(config.model.param_dtype)
    adapter, scale = start_adapter(config, shape, mesh)
    loaded = load_hf(folder, dtype=dtype, shardings=shardings(shape, mesh))
    return Policy(*loaded, tokenizer, adapter, scale, "" if adapter is None else folder_checksum(folder))


def check_vision(config: ConfigDict, vision: VisionConfig | None) -> None:
    """Raises InputError for an adapter on a tower that is not there."""
    if vision is None and config.model.lora.vision:
        raise InputError("config.model.lora.vision=True: the model has no vision tower; leave it out")


def model_folder(path: str, revision: str, *, key: str = "config.model.path") -> Path:
    """The folder that a path names: one in the working directory, one of the package, or a model of the Hub.

    Args:
      path: of the folder, or ORG/NAME.
      revision: branch, tag or commit of a model of the Hub; "" is its main branch.
      key: where the path was given, for messages.

    Raises:
      InputError: there is none.
    """
    folder = located(path)
    if folder.is_dir():
        if revision:
            raise InputError(f"{key}={path!r}: a folder, which has no revisions; leave revision={revision!r} out")
        return folder
    if not hub.is_name(path):
        raise InputError(f"{key}={path!r}: no such folder; give a Hugging Face model folder, or ORG/NAME of the Hub")
    return hub.download(path, revision, key=key)


def start_adapter(config: ConfigDict, shape: qwen2.Qwen2Config, mesh: jax.sharding.Mesh) -> tuple[Any, float]:
    """The adapter that a run of `model.lora` starts from, drawn from the seed or read, and its scale; None without.

    Raises:
      InputError: its rank is not low, or the folder that it is read from holds no such adapter.
    """
    wanted = lora_config(config)
    if wanted is None:
        return None, 1.0
    if wanted.rank > shape.hidden_size:
        raise InputError(
            f"config.model.lora.rank={wanted.rank}: the model is only {shape.hidden_size} wide; "
            "use a lower rank, or 0 to train all parameters"
        )
    where = adapter_shardings(shape, wanted, mesh)
    if config.model.lora.path:
        return jax.device_put(load_adapter(config.model.lora.path, shape, wanted), where), wanted.scale
    init = jax.jit(lambda key: lora.init(shape, wanted, key), out_shardings=where)
    return init(jax.random.fold_in(jax.random.key(config.seed), 1)), wanted.scale


def lora_config(config: ConfigDict) -> lora.LoraConfig | None:
    """The shape of the adapter that `model.lora` asks for, None for none."""
    asked = config.model.lora
    return lora.LoraConfig(asked.rank, asked.alpha, tuple(asked.targets), asked.vision) if asked.rank else None


def fresh_policy(config: ConfigDict, mesh: jax.sharding.Mesh, words: Iterable[str]) -> Policy:
    """Random weights of `model.shape` and a word-level tokenizer that knows `words`."""
    fields = dict(config.model.shape)
    tower, head_dim = fields.pop("vision"), fields["hidden_size"] // fields["num_heads"]
    factor = fields.pop("initializer_range") / INITIALIZER_RANGE
    # vLLM looks the token of videos up in the tokenizer.
    tokenizer = word_tokenizer(words, (*IMAGE_TOKENS, "<|video_pad|>") if tower.depth else ())
    vision = _fresh_tower(tower, tokenizer, head_dim) if tower.depth else None
    check_vision(config, vision)
    shape = qwen2.Qwen2Config(vocab_size=tokenizer.vocab_size, head_dim=head_dim, vision=vision, **fields)
    dtype = jnp.dtype(config.model.param_dtype)
    init = jax.jit(lambda key: _scaled(qwen2.init(shape, key, dtype), factor), out_shardings=shardings(shape, mesh))
    return Policy(shape, init(jax.random.key(config.seed)), tokenizer)


def _scaled(params: Any, factor: float) -> Any:
    """Random parameters with every matrix times `factor`; biases and norms stay."""

    def scaled(path: tuple[Any, ...], leaf: jax.Array) -> jax.Array:
        return leaf * factor if path[-1].key in ("kernel", "embed") else leaf

    return jax.tree.map_with_path(scaled, params)


def _fresh_tower(fields: ConfigDict, tokenizer: Tokenizer, head_dim: int) -> VisionConfig:
    """The tower of `model.shape.vision`: every eighth layer sees the whole image, the last one among them."""
    start, image, end = tokenizer.encode("".join(IMAGE_TOKENS))
    turns = 3 * head_dim // 16  # the published shares of frame, row and column: 16, 24 and 24 of 64 frequencies
    return VisionConfig(
        **fields,
        full_layers=tuple(range((fields.depth - 1) % 8, fields.depth, 8)),
        sections=(head_dim // 2 - 2 * turns, turns, turns),
        start_token=start,
        image_token=image,
        end_token=end,
    )


def save_policy(folder: Path, config: ConfigDict, policy: Policy, trained: Any) -> Any:
    """Writes a policy for transformers and vLLM.

    Responses of the model end where the policy's do, by generation_config.json. Of a run with an adapter the folder has
    the merged model, in float32, and the adapter alone, in PEFT's layout, in `adapter/`.

    Args:
      folder: see `weights.save_hf`.
      config: of the run.
      policy: its frozen parameters are taken over: it is of no use afterwards.
      trained: what goes in place of `policy.trained`.

    Returns:
      The parameters of the model in the folder.

    Raises:
      InputError: it cannot be written.
    """
    adapter, stop = lora_config(config), tuple(config.sampling.stop)
    if adapter is None:
        save_hf(folder, policy.config, trained, tokenizer=policy.tokenizer, stop_strings=stop)
        return trained
    merged = lora.merge(policy.params, trained, policy.scale)
    save_hf(folder, policy.config, merged, dtype=jnp.float32, tokenizer=policy.tokenizer, stop_strings=stop)
    save_adapter(folder / ADAPTER, adapter, trained, base=config.model.path, tower=policy.config.vision is not None)
    return merged


def shardings(shape: qwen2.Qwen2Config, mesh: jax.sharding.Mesh) -> Any:
    """Where each parameter lives, from the model's axis names and the rules of `partition`."""
    where, notes = partition.param_shardings(mesh, qwen2.logical_axes(shape), qwen2.abstract_params(shape))
    for note in notes:
        logging.warning(note)
    return where


def adapter_shardings(shape: qwen2.Qwen2Config, adapter: lora.LoraConfig, mesh: jax.sharding.Mesh) -> Any:
    """Where each array of an adapter lives: split as the outer axes of its kernels are."""
    where, notes = partition.param_shardings(mesh, lora.logical_axes(shape, adapter), lora.abstract(shape, adapter))
    for note in notes:
        logging.warning(note)
    return where


def trained_shardings(config: ConfigDict, shape: qwen2.Qwen2Config, mesh: jax.sharding.Mesh) -> Any:
    """Where each of `Policy.trained` lives."""
    adapter = lora_config(config)
    return shardings(shape, mesh) if adapter is None else adapter_shardings(shape, adapter, mesh)


def forward_function(
    config: ConfigDict, shape: qwen2.Qwen2Config, mesh: jax.sharding.Mesh
) -> Callable[..., tuple[jax.Array, jax.Array]]:
    """Builds the policy as `rl.update.Forward`.

    It takes `Policy.trained`, `Policy.frozen`, tokens [B, T], positions, segment_ids and images as in `StepBatch`, and
    gives hidden states [B, T, D] and the output embedding [V, D]. Rows stay spread over the mesh in every layer;
    parameters are as in `trained_shardings`.
    """
    adapter, trunk = lora_config(config), trunk_function(config, shape, mesh)

    def forward(
        trained: Any, frozen: Any, tokens: jax.Array, positions: jax.Array, segment_ids: jax.Array, images: Any
    ) -> tuple[jax.Array, jax.Array]:
        params = trained if adapter is None else lora.attach(frozen, trained, adapter.scale)
        hidden, params = trunk(params, tokens, positions, segment_ids, images)
        return hidden, qwen2.output_embedding(shape, params)

    return forward


def trunk_function(
    config: ConfigDict, shape: qwen2.Qwen2Config, mesh: jax.sharding.Mesh
) -> Callable[..., tuple[jax.Array, Any]]:
    """Builds a model of some shape up to its head.

    It takes its parameters, tokens [B, T], positions, segment_ids and images, and gives hidden states [B, T, D] and the
    parameters as a head uses them.
    """
    model, sampling = config.model, config.sampling
    embedding = partition.gathered(shardings(shape, mesh)["embed"])
    kernels = kernels_for(mesh.devices.flat[0])
    kernel = functools.partial(attention, kernels=kernels)
    execution = qwen2.Execution(
        dtype=jnp.dtype(model.compute_dtype),
        remat=model.remat,
        unroll=model.unroll,
        max_segment=sampling.max_prompt_tokens + sampling.max_response_tokens,
        # XLA splits its own products; other kernels have to see one device's rows and heads.
        attention=kernel if kernels == "cpu" else partition.on_each_device(mesh, kernel, shape.num_kv_heads),
        constrain=partition.row_constraint(mesh),
    )

    def trunk(
        params: Any, tokens: jax.Array, positions: jax.Array, segment_ids: jax.Array, images: Any
    ) -> tuple[jax.Array, Any]:
        params = params | {"embed": jax.lax.with_sharding_constraint(params["embed"], embedding)}
        positions = positions if images is None else jnp.moveaxis(positions, 1, 0)
        return qwen2.hidden_states(shape, params, tokens, positions, segment_ids, execution, images), params

    return trunk
