"""The programs of a config, compiled for devices that need not be here: nothing is allocated, no weights are read."""

import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from ml_collections import ConfigDict

from gigpo_jax.batching import images_stored, response_capacity
from gigpo_jax.columns import critic
from gigpo_jax.config.packaged import located
from gigpo_jax.errors import InputError
from gigpo_jax.learner import chosen, make_optimizer, train_programs
from gigpo_jax.models import lora, qwen2
from gigpo_jax.models.attention import BLOCK
from gigpo_jax.models.hf_config import read_config
from gigpo_jax.models.vision import Images
from gigpo_jax.models.vision_config import VisionConfig
from gigpo_jax.policy import Policy, lora_config, shardings, trained_shardings
from gigpo_jax.rl import update
from gigpo_jax.rl.types import StepBatch, ValueTargets
from gigpo_jax.rollout.engines import engine_settings
from gigpo_jax.run import partition
from gigpo_jax.run.report import say
from gigpo_jax.sampling import slots
from gigpo_jax.sampling.pictures import PictureRows
from gigpo_jax.sampling.placement import SLOTS, mesh_of, placement_of
from gigpo_jax.sampling.programs import Programs

FIX = "use more devices (mesh.fsdp, mesh.tensor), fewer batch.rows or engine.slots"
SEEING = ("3b", "7b")  # sizes of Qwen2.5-VL, whose decoders are those of Qwen2.5
FILL = 0.5  # of the limits of prompts and responses: what a step of an episode is taken to use


@dataclass(frozen=True)
class Compiled:
    """A program of an iteration.

    Attributes:
      name: update, score, critic, values, hand-over, prefill, decode or, of images, encode.
      program: of jax.
      seconds: that its compilation took.
      trips: turns of its loops over microbatches or tokens, and over blocks of the cache, in one run.
      runs: in an iteration whose episodes have `env.max_steps` steps, prompts and responses `FILL` of their limits.
    """

    name: str
    program: jax.stages.Compiled
    seconds: float
    trips: tuple[int, ...]
    runs: float


@dataclass(frozen=True)
class Shown:
    """The images of a prompt.

    Attributes:
      number: how many.
      patches: of one of them.
    """

    number: int
    patches: int


@dataclass(frozen=True)
class Arrays:
    """What is in memory during a whole run, as shapes with shardings; None: a run has none.

    Attributes:
      state: of the trained parameters.
      frozen: parameters below an adapter.
      reference: the reference policy's trained parameters.
      teacher: those of the copy that `columns.hindsight` has.
      critic: the critic's train state.
    """

    state: update.TrainState
    frozen: Any
    reference: Any
    teacher: Any
    critic: Any


def model_shape(config: ConfigDict) -> qwen2.Qwen2Config:
    """The shape of the model in `model.path`: of the folder's config.json or, without a folder, of a published model.

    Raises:
      InputError: it is neither a folder with a model nor the name of a published one.
    """
    path = config.model.path
    if path and located(path).is_dir():
        return read_config(located(path))
    known = {
        f"Qwen2.5-{size.upper()}-Instruct" if shape.model_type == "qwen2" else size.title(): shape
        for size, shape in qwen2.PUBLISHED.items()
    }
    tower = VisionConfig()
    known |= {f"Qwen2.5-VL-{size.upper()}-Instruct": replace(qwen2.PUBLISHED[size], vision=tower) for size in SEEING}
    if Path(path).name not in known:
        fix = f"name a folder with a config.json, or one of {', '.join(known)}"
        raise InputError(f"config.model.path={path!r}: no such folder; {fix}")
    return known[Path(path).name]


def arrays(config: ConfigDict, shape: qwen2.Qwen2Config, mesh: Mesh) -> Arrays:
    """What a learner of this config holds."""
    adapter, where = lora_config(config), trained_shardings(config, shape, mesh)
    base = _placed(qwen2.abstract_params(shape, jnp.dtype(config.model.param_dtype)), shardings(shape, mesh))
    trained = base if adapter is None else _placed(lora.abstract(shape, adapter), where)
    optimizer = make_optimizer(config, config.train.iterations)
    places = update.shard_state(optimizer, trained, where, partition.replicated(mesh))
    state = _placed(jax.eval_shape(lambda params: update.init_state(params, optimizer), trained), places)
    return Arrays(
        state,
        frozen=None if adapter is None else base,
        reference=trained if config.rl.kl_coef else None,
        teacher=trained if "teacher" in chosen(config).needs else None,
        critic=None if config.critic.kind == "none" else _critic(config, shape, mesh)[1],
    )


def learner_programs(
    config: ConfigDict, shape: qwen2.Qwen2Config, mesh: Mesh, held: Arrays, shown: Shown | None
) -> Iterator[Compiled]:
    """Compiles the update, and the log-probabilities that it needs beside it, as `Learner` does."""
    train, sampling = config.train, config.sampling
    places = jax.tree.map(lambda x: x.sharding, held.state)
    learn, score = train_programs(config, shape, mesh, make_optimizer(config, train.iterations), places)
    tokens = FILL * (sampling.max_prompt_tokens + sampling.max_response_tokens)
    microbatches = math.ceil(train.minibatch * tokens / (config.batch.rows * config.batch.row_length))
    once = train.groups * train.group_size * config.env.max_steps / train.minibatch
    minibatches = train.epochs * once
    scores = (config.rl.old_logprobs == "recompute") + bool(config.rl.kl_coef) + (held.teacher is not None)
    batch = _batch(config, mesh, microbatches)
    if shown is not None:
        samples = config.batch.rows * config.batch.row_length / tokens
        batch = _with_images(batch, shape, round(samples * shown.number), shown.patches)
    plain = replace(batch, reference=None, proximal=None)
    iteration = jax.ShapeDtypeStruct((), jnp.int32, sharding=partition.replicated(mesh))
    lowered = learn.lower(held.state, batch, held.frozen, iteration)
    yield Compiled("update", *_compiled("update", lowered), (microbatches,), minibatches)
    if scores:
        lowered = score.lower(held.state.params, plain, held.frozen)
        yield Compiled("score", *_compiled("score", lowered), (microbatches,), scores * minibatches)
    if held.critic is not None:
        learn, state, values = _critic(config, shape, mesh)
        both = (held.state.params, held.frozen)
        lowered = learn.lower(state, replace(batch, values=ValueTargets(*[batch.behaviour] * 3)), both)
        yield Compiled("critic", *_compiled("critic", lowered), (microbatches,), minibatches)
        lowered = values.lower(state.params, both, plain)
        yield Compiled("values", *_compiled("values", lowered), (microbatches,), once)


def _critic(config: ConfigDict, shape: qwen2.Qwen2Config, mesh: Mesh) -> tuple[Any, update.TrainState, Any]:
    """The critic's update, its train state as shapes, and the program of its values."""
    policy = Policy(shape, None, None)  # type: ignore[arg-type]  # of which only the shape is read
    params = critic.abstract_params(config, policy, mesh)
    init, learn, places = critic.train_programs(config, policy, mesh, params)
    return learn, _placed(jax.eval_shape(init, params), places), critic.values_program(config, policy, mesh)


def engine_programs(
    config: ConfigDict,
    shape: qwen2.Qwen2Config,
    held: Arrays,
    tensor: int,
    shown: Shown | None,
    own: Sequence[jax.Device],
) -> tuple[list[Compiled], Any, Any]:
    """Compiles the hand-over of the weights, the prefill of the longest prompts, and the decoding of all slots.

    With images also their encoding; each is taken to be shown once. `tensor` as from `memory.engine_tensor`, `own` as
    for `placement_of`.

    Returns:
      The programs, and the shapes of the engine's cache and weights.
    """
    settings, sampling = engine_settings(config, tensor), config.sampling
    params = held.state.params
    if held.frozen is not None:
        params = lora.beside(held.frozen, params)
    placement, whole = placement_of(params, tensor, own), mesh_of(params)
    hosts = 1 if whole is None else len({device.process_index for device in whole.devices.flat})
    episodes = config.train.groups * config.train.group_size // hosts  # of one host
    steps = episodes * config.env.max_steps
    engine = _Engine(shape, settings, settings.dtype, placement)
    ready = engine.prepare(params)
    rows, longest = settings.rows[-1] * placement.parts, settings.prefill_chunk or settings.buckets[-1]
    width = slots.SETTINGS + slots.STOP_IDS + longest
    message: Any = np.zeros((rows, width + 2 * bool(settings.prefill_chunk)), np.int32)
    if shown is not None and shape.vision is not None:
        message = message, PictureRows(rows, longest, shape.hidden_size, settings.dtype).message
        patches = np.zeros((rows, shown.patches, shape.vision.patch_values), np.uint8)
        engine.encode(ready, patches, np.zeros((rows, 2), np.int32))
    (engine.extend if settings.prefill_chunk else engine.admit)(ready, message)
    engine.advance(ready, np.zeros((placement.parts + settings.slots,), np.int32))
    tokens = steps * FILL * sampling.max_response_tokens / min(settings.slots, episodes)  # of one slot
    runs = {
        "hand-over": 1.0,
        "layers apart": 1.0,
        "prefill": steps / rows * FILL * sampling.max_prompt_tokens / longest,
        "decode": tokens / settings.decode_steps,
        "encode": steps * shown.number / rows if shown else 0.0,
    }
    made = engine.programs.items()
    blocks = math.ceil(FILL * settings.max_length / BLOCK)
    trips = {"decode": (settings.decode_steps, blocks), "prefill": (blocks,)}
    return [Compiled(name, *of, trips.get(name, ()), runs[name]) for name, of in made], engine.cache, ready


class _Engine(Programs):
    """Programs that are compiled and not run: arrays are shapes."""

    def __init__(self, *how: Any) -> None:
        super().__init__(*how)
        self.programs: dict[str, tuple[jax.stages.Compiled, float]] = {}
        self.cache: Any = None

    def _run(self, name: Any, function: Callable[..., Any], *args: Any, **how: Any) -> Any:
        if not args:  # the empty cache: without arguments there is no device to compile it for
            made = zip(jax.eval_shape(function), how["out_shardings"], strict=True)
            return [_placed(part, jax.tree.map(lambda _, place=place: place, part)) for part, place in made]
        lowered = jax.jit(function, **how).lower(*args)
        kind = name if isinstance(name, str) else name[0]
        shown = {"gather": "hand-over", "apart": "layers apart", "advance": "decode", "encode": "encode"}.get(
            kind, "prefill"
        )
        self.programs[shown] = _compiled(shown, lowered)
        out = _placed(lowered.out_info, self.programs[shown][0].output_formats)
        if shown == "decode":
            self.cache = out[0]
        return out

    def _local(self, leaf: Any) -> Any:
        where = self._placement.of_gathered(leaf)
        return leaf if where is None else jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where)

    def _send(self, message: Any) -> Any:
        return _placed(message, jax.tree.map(lambda _: self._placement.sharding(SLOTS), message))


def _compiled(name: str, lowered: jax.stages.Lowered) -> tuple[jax.stages.Compiled, float]:
    """Compiles, and takes the time.

    Raises:
      InputError: the compiler says that it does not fit.
    """
    say(f"compiling: {name}")
    before = time.perf_counter()
    try:
        return lowered.compile(), time.perf_counter() - before
    except jax.errors.JaxRuntimeError as err:
        if "RESOURCE_EXHAUSTED" not in str(err):
            raise
        used = re.search(r"Used \S+ of \S+", str(err))
        raise InputError(
            f"the program '{name}' alone does not fit: {used[0] if used else str(err)[:200]}; {FIX}"
        ) from err


def _placed(tree: Any, where: Any) -> Any:
    return jax.tree.map(lambda x, place: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), tree, where)


def _batch(config: ConfigDict, mesh: Mesh, microbatches: int) -> StepBatch:
    """The shapes of a minibatch whose steps use `FILL` of the limits."""
    sampling, length = config.sampling, config.batch.row_length
    prompt, response = sampling.max_prompt_tokens, sampling.max_response_tokens
    capacity = response_capacity(prompt + response, response, response, length)
    spread, needs = NamedSharding(mesh, P(None, partition.ROWS)), chosen(config).needs

    def of(width: int, dtype: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((microbatches, config.batch.rows, width), dtype, sharding=spread)

    tokens, ids, numbers = of(length, jnp.int32), of(capacity, jnp.int32), of(capacity, jnp.float32)
    return StepBatch(
        tokens=tokens,
        positions=tokens,
        segment_ids=tokens,
        response_index=ids,
        targets=ids,
        behaviour=numbers,
        advantage=numbers,
        weight=numbers,
        microbatches=jax.ShapeDtypeStruct((), jnp.int32, sharding=partition.replicated(mesh)),
        reference=numbers if config.rl.kl_coef and config.rl.kl_in == "loss" else None,
        proximal=numbers if config.rl.old_logprobs == "recompute" else None,
        action_mask=of(capacity, jnp.bool_) if "action_mask" in needs else None,
        clip_scale=numbers if "clip_scale" in needs else None,
        teacher=numbers if "teacher" in needs else None,
    )


def _with_images(batch: StepBatch, shape: qwen2.Qwen2Config, images: int, patches: int) -> StepBatch:
    """The shapes of a minibatch whose microbatches have so many distinct images."""
    assert shape.vision is not None
    (stored, rows, length), spread = batch.tokens.shape, batch.tokens.sharding
    number = images_stored(images, rows)

    def of(*dims: int, dtype: Any = jnp.int32) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((stored, *dims), dtype, sharding=spread)

    values = of(number, patches, shape.vision.patch_values, dtype=jnp.uint8)
    return replace(batch, positions=of(rows, 3, length), images=Images(values, of(number, 2), batch.tokens))
