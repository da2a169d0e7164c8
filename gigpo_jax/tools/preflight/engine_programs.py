"""The in-process engine's programs of an iteration: hand-over, prefill, decode, encode."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from gigpo_jax.devices.sharded_shapes import with_shardings
from gigpo_jax.engines.jax import slots
from gigpo_jax.engines.jax.chunk_programs import run_prefill_chunks
from gigpo_jax.engines.jax.engine_devices import place_engine
from gigpo_jax.engines.jax.images import ImageRows, run_vision_tower
from gigpo_jax.engines.jax.placement import SLOTS, parameter_mesh
from gigpo_jax.engines.jax.programs import Programs
from gigpo_jax.engines.jax.split_placement import SplitPlacement
from gigpo_jax.learner.expected_tokens import FILL
from gigpo_jax.models import decoder, lora
from gigpo_jax.models.chunk_attention import BLOCK
from gigpo_jax.rollout.engines import engine_settings
from gigpo_jax.tools.preflight.compiled import Compiled, compile_program
from gigpo_jax.tools.preflight.shapes import Arrays, ImageSizes

PROGRAMS = ("hand-over", "layers apart", "prefill", "decode", "encode")


@dataclass(frozen=True)
class CompiledEngine:
    """Result of `compile_engine`.

    Attributes:
      programs: Programs of the engine.
      cache: Shapes of the engine's cache.
      params: Shapes of the engine's weights.
      copies_weights: Whether the engine has its own weights beside the weights of the hand-over.
    """

    programs: list[Compiled]
    cache: Any
    params: Any
    copies_weights: bool


def compile_engine(
    config: ConfigDict,
    shape: decoder.DecoderConfig,
    arrays: Arrays,
    tensor: int,
    images: ImageSizes | None,
    engine_devices: Sequence[jax.Device],
) -> CompiledEngine:
    """Compiles the hand-over of weights, the longest prefill, and the decoding of all slots.

    With images it also compiles their encoding. Each image is assumed to be shown once.

    Args:
      config: Resolved config.
      shape: Shape of the model.
      arrays: Arrays of the learner.
      tensor: Result of `engine_split.engine_split_size`.
      images: Images of a prompt; None for a model without a tower.
      engine_devices: Devices of this host that are reserved for the engine.
    """
    settings = engine_settings(config, tensor)
    params = arrays.state.params
    if arrays.policy.frozen is not None:
        # The engine applies an adapter in its layers; the weights below it are the frozen ones.
        params = lora.insert_pairs(arrays.policy.frozen, params)
    # The same placement as in a run, so that the same collectives are compiled.
    placement = place_engine(params, tensor, engine_devices)
    programs = AbstractPrograms(shape, settings, settings.dtype, placement)
    weights = programs.prepare_params(params)
    rows = settings.rows[-1] * placement.partitions
    # The largest programs of their kinds, which decide whether a run fits: most rows, longest
    # prompts, all slots.
    prompt_length = settings.prefill_chunk or settings.buckets[-1]
    width = slots.SETTINGS + slots.STOP_IDS + prompt_length
    if settings.prefill_chunk:
        width += 2  # start and end of the chunk
    image_inputs = None
    if images is not None and shape.vision is not None:
        feature_width = shape.vision.feature_parts * shape.hidden_size
        image_inputs = ImageRows(rows, prompt_length, feature_width, settings.dtype).inputs
        patches = np.zeros((rows, images.patches, shape.vision.patch_values), np.uint8)
        run_vision_tower(programs, weights, patches, np.zeros((rows, 2), np.int32))
    # Called like the real programs, on shapes: each call compiles one program and notes it.
    batch = slots.PromptBatch(np.zeros((rows, width), np.int32), image_inputs)
    if settings.prefill_chunk:
        run_prefill_chunks(programs, weights, batch)
    else:
        programs.prefill_prompts(weights, batch)
    # Only shapes are compiled, so zeros will do.
    control = np.zeros((placement.partitions + settings.slots,), np.int32)
    programs.decode_tokens(weights, control)

    runs = _count_runs(
        config,
        hosts=_count_hosts(params),
        rows=rows,
        prompt_length=prompt_length,
        images=images.number if images else 0,
    )
    # The decoding reads the filled blocks of a cache only, in a loop of unknown length.
    blocks = math.ceil(FILL * settings.max_length / BLOCK)
    trips = {"decode": (settings.decode_steps, blocks), "prefill": (blocks,)}
    compiled = [
        Compiled(name, program, seconds, trips.get(name, ()), runs[name])
        for name, (program, seconds) in programs.compiled.items()
    ]
    return CompiledEngine(
        programs=compiled,
        cache=programs.cache_shapes,
        params=weights,
        copies_weights=bool(engine_devices) or "layers apart" in programs.compiled,
    )


def _count_hosts(params: decoder.Params) -> int:
    """Number of hosts of the learner's mesh."""
    mesh = parameter_mesh(params)
    return 1 if mesh is None else len({device.process_index for device in mesh.devices.flat})


def _count_runs(
    config: ConfigDict, *, hosts: int, rows: int, prompt_length: int, images: int
) -> dict[str, float]:
    """Estimates how often a host runs each program in an iteration.

    Args:
      config: Resolved config.
      hosts: Number of hosts, over which episodes are split.
      rows: Prompts of a prefill.
      prompt_length: Tokens of a prompt in a prefill.
      images: Number of images of a prompt.
    """
    host_episodes = config.train.groups * config.train.group_size // hosts
    host_steps = host_episodes * config.env.max_steps
    slot_episodes = min(config.engine.slots, host_episodes)
    # A slot plays its share of the host's episodes one after the other.
    slot_tokens = host_steps * FILL * config.sampling.max_response_tokens / slot_episodes
    prompt_tokens = FILL * config.sampling.max_prompt_tokens
    return {
        "hand-over": 1.0,
        "layers apart": 1.0,
        "prefill": host_steps / rows * prompt_tokens / prompt_length,
        "decode": slot_tokens / config.engine.decode_steps,
        "encode": host_steps * images / rows,
    }


class AbstractPrograms(Programs):
    """The engine's programs on shapes: they are compiled, not run.

    Attributes:
      compiled: Executable and time of compilation by name of the program.
      cache_shapes: Shapes of the cache, once `decode_tokens` was called.
    """

    def __init__(self, *args: Any) -> None:
        """Takes the arguments of `Programs`."""
        super().__init__(*args)
        self.compiled: dict[str, tuple[jax.stages.Compiled, float]] = {}
        self.cache_shapes: Any = None

    def run_program(
        self, name: tuple[Any, ...], function: Callable[..., Any], *args: Any, **jit_options: Any
    ) -> Any:
        """Compiles a program; returns the shapes of its results."""
        if not args:
            # The empty cache: without arguments there is no device to compile it for.
            shapes = jax.eval_shape(function)
            shardings = jax.tree.broadcast(
                jit_options["out_shardings"], shapes, is_leaf=lambda leaf: leaf is None
            )
            return with_shardings(shapes, shardings)
        # The shapes of the results are the arguments of the next program, with the layout that the
        # compiler chose for them.
        lowered = jax.jit(function, **jit_options).lower(*args)
        program, seconds = compile_program(name[0], lowered)
        self.compiled[name[0]] = (program, seconds)
        return with_shardings(lowered.out_info, program.output_formats)

    def decode_tokens(self, params: decoder.Params, control: np.ndarray) -> jax.Array:
        """Compiles the decoding, and notes the shapes of its cache."""
        tokens = super().decode_tokens(params, control)
        self.cache_shapes = self.cache
        return tokens

    def localize_leaf(self, placement: SplitPlacement, leaf: Any) -> Any:
        """The shape of this host's shards of a gathered parameter."""
        sharding = placement.local_sharding(leaf)
        if sharding is None:
            return leaf
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    def send_message(self, message: Any) -> Any:
        """The shapes of a message on the devices."""
        sharding = self.placement.sharding(SLOTS)
        return with_shardings(message, jax.tree.map(lambda _: sharding, message))
