"""The compiled programs of an engine, one for each shape, and the arrays on the device that they work on."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gigpo_jax.models import on_cpu, qwen2
from gigpo_jax.models.cache import cache_length, copy_chunks
from gigpo_jax.models.chunks import extend
from gigpo_jax.models.vision import encode
from gigpo_jax.sampling import slots as device
from gigpo_jax.sampling.placement import SLOTS, Placement, gather


@dataclass(frozen=True)
class EngineSettings:
    """Shapes of an engine.

    Attributes:
      slots: S, sequences that are decoded together.
      max_length: tokens of prompt and response together, at most.
      prefill_buckets: padded prompt lengths, each at most `max_length`; empty for powers of two up to it.
      prefill_rows: batch sizes of a prefill; with one size responses do not depend on other requests.
      prefill_chunk: tokens; prompts are read in chunks of this length and keep the cache of chunks that they share. 0:
        whole prompts are read, padded to a bucket.
      decode_steps: tokens of a slot per device call, at most.
      dtype: of the computation and of the cache; None is the parameters'.
      tensor: devices that split the weights and heads; at least those that split the learner's.
      devices: of this host, for the engine alone; empty: those that the parameters are on.
    """

    slots: int
    max_length: int
    prefill_buckets: tuple[int, ...] = ()
    prefill_rows: tuple[int, ...] = (8,)
    prefill_chunk: int = 0
    decode_steps: int = 16
    dtype: Any = None
    tensor: int = 1
    devices: tuple[jax.Device, ...] = ()

    @property
    def buckets(self) -> tuple[int, ...]:
        """Padded prompt lengths, ascending."""
        powers = range(5, max(6, (self.max_length - 1).bit_length() + 1))
        return tuple(sorted(set(self.prefill_buckets or (min(2**power, self.max_length) for power in powers))))

    @property
    def capacity(self) -> int:
        """C, the length of the cache; see `cache_length`."""
        return cache_length(self.max_length, self.prefill_chunk)

    @property
    def rows(self) -> tuple[int, ...]:
        """Batch sizes of a prefill, ascending."""
        return tuple(sorted({min(rows, self.slots) for rows in self.prefill_rows}))


class Programs:
    """Runs `slots.admit` and `slots.advance` on a cache and slots that stay on the device.

    Executables are compiled ahead of time: a new shape raises `compile_count`, there is no silent recompilation.

    Attributes:
      compile_count: programs compiled so far.
    """

    def __init__(self, config: qwen2.Qwen2Config, settings: EngineSettings, dtype: Any, placement: Placement) -> None:
        """Allocates nothing yet."""
        self.compile_count = 0
        self._settings, self._dtype, self._placement = settings, jnp.dtype(dtype), placement
        slow = placement.device.platform == "cpu" and self._dtype == jnp.bfloat16
        self._config = replace(config, for_cpu=slow)
        self._cache_dtype = jnp.dtype(on_cpu.BITS) if slow else self._dtype
        self._compiled: dict[Any, Any] = {}
        self._cache: Any = None
        self._state: Any = None

    def prepare(self, params: qwen2.Params) -> qwen2.Params:
        """Parameters as `admit` and `advance` take them: in their dtype, on the devices of the placement.

        What is so already is not copied, but for bfloat16 on CPUs. All hosts must call it in the same order: it
        gathers over their devices.
        """
        leaves, tree = jax.tree.flatten(params)
        wanted = [self._placement.gathered(leaf) for leaf in leaves]
        # Only these are copied: with an adapter nearly all arrays have the right dtype.
        differing = [
            number
            for number, (leaf, where) in enumerate(zip(leaves, wanted, strict=True))
            if leaf.dtype != self._dtype or (where and not leaf.sharding.is_equivalent_to(where, leaf.ndim))
        ]
        if differing:
            some, where = [leaves[number] for number in differing], [wanted[number] for number in differing]
            ready = self._run("gather", gather(some, self._dtype), some, out_shardings=where)
            for number, leaf in zip(differing, ready, strict=True):
                leaves[number] = leaf
        ready = jax.tree.unflatten(tree, [self._local(leaf) for leaf in leaves])
        if self._config.for_cpu:
            ready["layers"] = self._run("apart", on_cpu.apart, ready["layers"])
        return ready

    def admit(self, params: qwen2.Params, message: Any) -> jax.Array:
        """Prefills prompts and draws their first tokens; all as in `slots.admit`, of all parts in turn."""
        prefill = self._forward(functools.partial(qwen2.prefill, kernels=self._placement.kernels))
        function = functools.partial(device.admit, prefill)
        return self._step(("admit", *_shapes(message)), function, params, message, (None, SLOTS))

    def extend(self, params: qwen2.Params, message: Any) -> jax.Array:
        """Prefills chunks of prompts; message and result as in `slots.extend`, of all parts in turn."""
        function = functools.partial(device.extend, self._forward(extend))
        return self._step(("extend", *_shapes(message)), function, params, message, (None, SLOTS))

    def encode(self, params: qwen2.Params, patches: np.ndarray, grid: np.ndarray) -> jax.Array:
        """Runs the vision tower; arguments and result as for `vision.encode`, of all parts in turn."""
        vision, dtype = self._config.vision, self._dtype
        assert vision is not None

        def run(params: Any, cache: Any, state: Any, message: Any) -> tuple[Any, Any, jax.Array]:
            return cache, state, self._placement.whole(encode(vision, params["vision"], *message, dtype=dtype))

        return self._step(("encode", *patches.shape), run, params, (patches, grid), (SLOTS,))

    def copy(self, chunks: np.ndarray) -> None:
        """Copies chunks [parts * N, 3] i32: source slot, target slot (a number of no slot: none), first index."""
        length = self._settings.prefill_chunk

        def copy(_: Any, cache: Any, state: Any, chunks: jax.Array) -> tuple[Any, Any, jax.Array]:
            sources, targets, starts = chunks.T
            return copy_chunks(cache, sources, targets, starts, length), state, sources

        self._step(("copy", len(chunks)), copy, {}, chunks, (SLOTS,))

    def advance(self, params: qwen2.Params, control: np.ndarray) -> jax.Array:
        """Draws tokens for all active slots; control and result as in `slots.advance`, of all parts in turn."""
        decode = functools.partial(device.advance, self._forward(qwen2.decode), self._settings.decode_steps)
        return self._step("advance", decode, params, control, (None, None, SLOTS))

    def reset(self) -> None:
        """Drops cache and slots, after a failure or at the end; the next call makes new ones."""
        self._cache = self._state = None

    def _local(self, leaf: jax.Array) -> jax.Array:
        return self._placement.local(leaf)

    def _send(self, message: Any) -> Any:
        """Every part's piece of a message, on its devices."""
        where = self._placement.sharding(SLOTS)
        return message if where is None else jax.device_put(message, where)

    def _forward(self, function: Callable[..., tuple[jax.Array, Any]]) -> Callable[..., tuple[jax.Array, Any]]:
        """A forward pass whose logits are whole on every device: sampling is then the same on all of them."""

        def run(*args: Any) -> tuple[jax.Array, Any]:
            logits, cache = function(self._config, *args)
            return self._placement.whole(logits), cache

        return run

    def _step(
        self, name: Any, function: Callable[..., Any], params: qwen2.Params, message: Any, axes: Sequence[Any]
    ) -> jax.Array:
        here = self._placement
        kept = (here.cache, here.sharding(SLOTS))
        if self._cache is None:
            self._cache, self._state = self._run("empty", self._empty, out_shardings=kept)
        self._cache, self._state, out = self._run(
            name,
            here.spread(function, axes),
            *(params, self._cache, self._state, self._send(message)),
            donate_argnums=(1, 2),
            out_shardings=(*kept, here.sharding(*axes)),
        )
        return out

    def _empty(self) -> tuple[Any, Any]:
        slots, length = self._settings.slots, self._settings.capacity
        return qwen2.init_cache(self._config, slots, length, self._cache_dtype), device.init_slots(
            slots, shifted=self._config.vision is not None
        )

    def _run(self, name: Any, function: Callable[..., Any], *args: Any, **how: Any) -> Any:
        """Calls the executable of that name, which is compiled on first use; `how` goes to `jax.jit`."""
        if name not in self._compiled:
            self._compiled[name] = jax.jit(function, **how).lower(*args).compile()
            self.compile_count += 1
        return self._compiled[name](*args)


def _shapes(message: Any) -> tuple[tuple[int, ...], ...]:
    return tuple(leaf.shape for leaf in jax.tree.leaves(message))


def difference(ours: dict[str, str], theirs: dict[str, str]) -> str:
    """The first difference of two trees that were `described`; "" if there is none."""
    for path in sorted(ours | theirs):
        if ours.get(path) != theirs.get(path):
            return f"{path} is {theirs.get(path, 'missing')}, was {ours.get(path, 'missing')}"
    return ""


def described(params: qwen2.Params) -> dict[str, str]:
    """The dtype and shape of every leaf, by its path."""
    leaves = jax.tree_util.tree_leaves_with_path(params)
    return {jax.tree_util.keystr(path): f"{leaf.dtype}{list(leaf.shape)}" for path, leaf in leaves}
