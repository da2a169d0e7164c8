"""The compiled programs of an engine, one for each shape, and the arrays on the device."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from gigpo_jax.engines.jax import slots as device_code
from gigpo_jax.engines.jax.placement import SLOTS, Placement
from gigpo_jax.engines.jax.slots import PromptBatch
from gigpo_jax.models import decoder, decoding
from gigpo_jax.models.cache import BITS, KVCache, cache_length

if TYPE_CHECKING:
    from gigpo_jax.engines.jax.split_placement import SplitPlacement


@dataclass(frozen=True)
class EngineSettings:
    """Settings of an in-process engine, which decide the shapes of its programs.

    Attributes:
      slots: S, number of sequences that are decoded together.
      max_length: Largest number of tokens of prompt and response together.
      prefill_buckets: Padded prompt lengths, each at most `max_length`; empty for powers of two up
        to it.
      prefill_rows: Batch sizes of a prefill; with one size responses do not depend on other
        requests.
      prefill_chunk: Length of a chunk, tokens; prompts are read in chunks and slots share the cache
        of equal ones. 0: whole prompts are read, padded to a bucket.
      keep_responses: Whether a prompt that continues a prompt and its response is read behind them,
        in the slot that decoded the response; False: responses are read again. Needs chunks.
      decode_steps: Largest number of decode steps of a device call.
      dtype: Dtype of the computation and of the cache; None is the parameters'.
      tensor: Number of devices that split the weights and heads; at least the learner's number.
      devices: Devices of this host that are reserved for the engine; empty: those that hold the
        parameters.
      keeps_routes: Whether responses have the experts of their tokens.
      keeps_entropies: Whether responses have entropies.
      cuts_tokens: Whether requests have top-p or top-k from the start.
    """

    slots: int
    max_length: int
    prefill_buckets: tuple[int, ...] = ()
    prefill_rows: tuple[int, ...] = (8,)
    prefill_chunk: int = 0
    keep_responses: bool = False
    decode_steps: int = 16
    dtype: Any = None
    tensor: int = 1
    devices: tuple[jax.Device, ...] = ()
    keeps_routes: bool = False
    keeps_entropies: bool = False
    cuts_tokens: bool = False

    @property
    def buckets(self) -> tuple[int, ...]:
        """Padded prompt lengths, ascending."""
        if self.prefill_buckets:
            return tuple(sorted(set(self.prefill_buckets)))
        # Powers of two from 32 on: padding at most doubles longer prompts, and programs are few.
        last_power = max(5, (self.max_length - 1).bit_length())
        powers = range(5, last_power + 1)
        return tuple(sorted({min(2**power, self.max_length) for power in powers}))

    @property
    def capacity(self) -> int:
        """C, the length of the cache; see `cache_length`."""
        return cache_length(self.max_length, self.prefill_chunk)

    @property
    def rows(self) -> tuple[int, ...]:
        """Batch sizes of a prefill, ascending."""
        return tuple(sorted({min(rows, self.slots) for rows in self.prefill_rows}))


class Programs:
    """Runner of the functions of `slots.py`; the cache and the slots stay on the device.

    Executables are compiled ahead of time: a new shape raises `compile_count`, there is no silent
    recompilation. Messages and results are of all partitions, one after the other.

    Attributes:
      cuts_tokens: Whether tokens are cut by top-p and top-k, which takes other programs; to be set
        before a request that asks for it is read.
    """

    def __init__(
        self,
        config: decoder.DecoderConfig,
        settings: EngineSettings,
        dtype: Any,
        placement: Placement,
    ) -> None:
        """Stores the shapes; allocates nothing yet."""
        self.compile_count = 0
        self.settings = settings
        self.cuts_tokens = settings.cuts_tokens
        self.dtype = jnp.dtype(dtype)
        self.placement = placement
        # XLA's CPU backend copies a bfloat16 array to float32 wherever a part of it is read.
        bfloat16_on_cpu = placement.device.platform == "cpu" and self.dtype == jnp.bfloat16
        self.config = replace(config, for_cpu=bfloat16_on_cpu)
        self._cache_dtype = jnp.dtype(BITS) if bfloat16_on_cpu else self.dtype
        self._compiled: dict[Any, Any] = {}
        self.cache: Any = None
        self._state: Any = None

    def prepare_params(self, params: decoder.Params) -> decoder.Params:
        """Casts parameters and moves them to the placement's devices.

        A leaf with the right dtype and place is not copied, except for bfloat16 on CPUs. All hosts
        must call this in the same order: it gathers over their devices.
        """
        leaves = jax.tree.leaves(params)
        is_whole = self.placement.is_one_device and not self.config.for_cpu
        if is_whole and all(leaf.dtype == self.dtype for leaf in leaves):
            return params
        from gigpo_jax.engines.jax.prepared_params import prepare_params

        return prepare_params(
            self.config,
            self.placement,
            params,
            self.dtype,
            run_program=self.run_program,
            localize_leaf=self.localize_leaf,
        )

    def prefill_prompts(self, params: decoder.Params, batch: PromptBatch) -> jax.Array:
        """Prefills prompts and draws their first tokens; see `slots.prefill_prompts`."""
        prefill = functools.partial(decoding.prefill, kernels=self.placement.kernels)
        function = self.bind_forward(device_code.prefill_prompts, prefill)
        return self.run_step(
            ("prefill", "prompts", *leaf_shapes(batch)), function, params, batch, (None, SLOTS)
        )

    def bind_forward(
        self, function: Callable[..., Any], forward: Callable[..., Any], *args: Any
    ) -> Any:
        """Binds a function of the device to its forward pass and further arguments."""
        return functools.partial(
            function,
            self._replicate_logits(forward),
            *args,
            keeps_entropies=self.settings.keeps_entropies,
            cuts_tokens=self.cuts_tokens,
        )

    def decode_tokens(self, params: decoder.Params, control: np.ndarray) -> jax.Array:
        """Draws tokens for all active slots; see `slots.decode_tokens`."""
        steps = self.settings.decode_steps
        decode = functools.partial(decoding.decode, kernels=self.placement.kernels)
        function = self.bind_forward(device_code.decode_tokens, decode, steps)
        return self.run_step(("decode",), function, params, control, (None, None, SLOTS))

    def reset(self) -> None:
        """Drops cache and slots after a failure or at the end; the next call makes new ones."""
        self.cache = None
        self._state = None

    def localize_leaf(self, placement: "SplitPlacement", leaf: jax.Array) -> jax.Array:
        """Returns this host's shards of a gathered parameter; preflight returns their shapes."""
        return placement.localize(leaf)

    def send_message(self, message: Any) -> Any:
        """Puts every partition's piece of a message on its devices."""
        sharding = self.placement.sharding(SLOTS)
        if sharding is None:
            return message
        return jax.device_put(message, sharding)

    def run_program(
        self, name: tuple[Any, ...], function: Callable[..., Any], *args: Any, **jit_options: Any
    ) -> Any:
        """Calls the executable of that name, which is compiled on first use.

        The first word of a name is the kind of program; the rest are shapes.
        """
        # Ahead of time: the executable refuses arguments of another shape, where `jax.jit` would
        # silently compile again in the middle of a run.
        if name not in self._compiled:
            self._compiled[name] = jax.jit(function, **jit_options).lower(*args).compile()
            self.compile_count += 1
        return self._compiled[name](*args)

    def _replicate_logits(
        self, function: Callable[..., tuple[jax.Array, Any]]
    ) -> Callable[..., tuple[jax.Array, Any]]:
        """Binds a forward pass to the config and replicates its logits over a partition's devices.

        All of these devices then draw the same tokens.
        """

        experts = self.placement.experts(self.config.experts)

        def forward(*args: Any) -> tuple[jax.Array, Any]:
            logits, cache = function(self.config, *args, experts=experts)
            return self.placement.replicate(logits), cache

        return forward

    def run_step(
        self,
        name: tuple[Any, ...],
        function: Callable[..., Any],
        params: decoder.Params,
        message: Any,
        result_axes: Sequence[Any],
    ) -> jax.Array:
        """Runs a function of (params, cache, slots, message), and keeps its cache and slots."""
        placement = self.placement
        entries = placement.cache_sharding(self.config.num_kv_heads)
        cache_shardings = KVCache(entries, entries)
        if self.settings.keeps_routes or self.config.layer_types:
            from gigpo_jax.engines.jax.special_shardings import special_shardings

            cache_shardings = special_shardings(
                self.config,
                placement,
                entries,
                keeps_routes=self.settings.keeps_routes,
                keeps_checkpoints=self.settings.prefill_chunk > 0,
            )
        state_shardings = (cache_shardings, placement.sharding(SLOTS))
        # On the first call and after `reset`. The whole cache need not fit one device: by the
        # shardings of the result each device creates its shard.
        if self.cache is None:
            self.cache, self._state = self.run_program(
                ("empty",), self._create_state, out_shardings=state_shardings
            )
        # Donated: the cache is the largest array, and a second one would not fit.
        self.cache, self._state, result = self.run_program(
            (*name, self.cuts_tokens),
            placement.map_partitions(function, result_axes),
            params,
            self.cache,
            self._state,
            self.send_message(message),
            donate_argnums=(1, 2),
            out_shardings=(*state_shardings, placement.sharding(*result_axes)),
        )
        return result

    def _create_state(self) -> tuple[Any, Any]:
        settings = self.settings
        cache = decoding.init_cache(
            self.config,
            settings.slots,
            settings.capacity,
            self._cache_dtype,
            keeps_routes=settings.keeps_routes,
            prefill_chunk=settings.prefill_chunk,
            rows=settings.rows[-1],
        )
        has_vision = self.config.vision is not None
        return cache, device_code.init_slots(settings.slots, shifted=has_vision)


def describe_leaves(params: decoder.Params) -> dict[str, str]:
    """Returns the dtype and shape of each leaf by path."""
    # Texts, because the engine keeps them: the leaves themselves would hold their memory.
    leaves = jax.tree_util.tree_leaves_with_path(params)
    return {jax.tree_util.keystr(path): f"{leaf.dtype}{list(leaf.shape)}" for path, leaf in leaves}


def check_leaves(expected: dict[str, str], params: decoder.Params, version: int) -> None:
    """Raises ValueError if parameters are not as `describe_leaves` said of the engine's."""
    actual = describe_leaves(params)
    for path in sorted(expected | actual):
        if expected.get(path) != actual.get(path):
            raise ValueError(
                f"version {version}: parameters unlike those of the engine: "
                f"{path} is {actual.get(path, 'missing')}, was {expected.get(path, 'missing')}"
            )


def leaf_shapes(batch: PromptBatch) -> tuple[tuple[int, ...], ...]:
    """Returns the shapes of the arrays of a batch."""
    return tuple(leaf.shape for leaf in jax.tree.leaves(batch))
