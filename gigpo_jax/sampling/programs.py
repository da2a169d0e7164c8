"""The compiled programs of an engine, one for each shape, and the arrays on the device that they work on."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from gigpo_jax.models import qwen2
from gigpo_jax.sampling import slots as device


@dataclass(frozen=True)
class EngineSettings:
    """Shapes of an engine.

    Attributes:
      slots: S, sequences that are decoded together.
      max_length: length of the cache: tokens of prompt and response together, at most.
      prefill_buckets: padded prompt lengths, each at most `max_length`; empty for powers of two up to it.
      prefill_rows: batch sizes of a prefill; with one size responses do not depend on other requests.
      decode_steps: tokens of a slot per device call, at most.
      dtype: of the computation and of the cache; None is the parameters'.
    """

    slots: int
    max_length: int
    prefill_buckets: tuple[int, ...] = ()
    prefill_rows: tuple[int, ...] = (8,)
    decode_steps: int = 16
    dtype: Any = None

    @property
    def buckets(self) -> tuple[int, ...]:
        """Padded prompt lengths, ascending."""
        powers = range(5, max(6, (self.max_length - 1).bit_length() + 1))
        return tuple(sorted(set(self.prefill_buckets or (min(2**power, self.max_length) for power in powers))))

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

    def __init__(self, config: qwen2.Qwen2Config, settings: EngineSettings, dtype: Any, mesh: Mesh | None) -> None:
        """Allocates nothing yet; the cache is sharded over `mesh`."""
        self.compile_count = 0
        self._config, self._settings, self._dtype, self._mesh = config, settings, jnp.dtype(dtype), mesh
        self._compiled: dict[Any, Any] = {}
        self._cache: Any = None
        self._state: Any = None

    def prepare(self, params: qwen2.Params) -> qwen2.Params:
        """Parameters in the dtype of the computation, as `admit` and `advance` take them."""
        leaves, tree = jax.tree.flatten(params)
        differing = [number for number, leaf in enumerate(leaves) if leaf.dtype != self._dtype]
        if not differing:
            return params
        # Only these are copied: with an adapter nearly all arrays have the right dtype.
        cast = self._run("cast", lambda some: [x.astype(self._dtype) for x in some], [leaves[n] for n in differing])
        for number, leaf in zip(differing, cast, strict=True):
            leaves[number] = leaf
        return jax.tree.unflatten(tree, leaves)

    def admit(self, params: qwen2.Params, rows: np.ndarray) -> jax.Array:
        """Prefills prompts and draws their first tokens; rows and result as in `slots.admit`."""
        prefill = functools.partial(qwen2.prefill, self._config)
        return self._step(rows.shape, functools.partial(device.admit, prefill), params, rows)

    def advance(self, params: qwen2.Params, control: np.ndarray) -> jax.Array:
        """Draws tokens for all active slots; control and result as in `slots.advance`."""
        decode, steps = functools.partial(qwen2.decode, self._config), self._settings.decode_steps
        return self._step("advance", functools.partial(device.advance, decode, steps), params, control)

    def reset(self) -> None:
        """Drops cache and slots, after a failure or at the end; the next call makes new ones."""
        self._cache = self._state = None

    def _step(self, name: Any, function: Callable[..., Any], params: qwen2.Params, message: np.ndarray) -> jax.Array:
        shardings = self._shardings()
        if self._cache is None:
            self._cache, self._state = self._run("empty", self._empty, out_shardings=shardings and shardings[:2])
        args = (params, self._cache, self._state, message)
        self._cache, self._state, out = self._run(name, function, *args, donate_argnums=(1, 2), out_shardings=shardings)
        return out

    def _empty(self) -> tuple[Any, Any]:
        slots, length = self._settings.slots, self._settings.max_length
        return qwen2.init_cache(self._config, slots, length, self._dtype), device.init_slots(slots)

    def _run(self, name: Any, function: Callable[..., Any], *args: Any, **how: Any) -> Any:
        """Calls the executable of that name, which is compiled on first use; `how` goes to `jax.jit`."""
        if name not in self._compiled:
            self._compiled[name] = jax.jit(function, **how).lower(*args).compile()
            self.compile_count += 1
        return self._compiled[name](*args)

    def _shardings(self) -> tuple[NamedSharding, ...] | None:
        """Shardings of cache [L, S, G, C, K] (heads over `tensor`), slots and result; None without a mesh."""
        if self._mesh is None:
            return None
        split = dict(self._mesh.shape).get("tensor", 1)
        heads = "tensor" if split > 1 and self._config.num_kv_heads % split == 0 else None
        spread = PartitionSpec(None, None, heads)
        whole = NamedSharding(self._mesh, PartitionSpec())
        return NamedSharding(self._mesh, spread), whole, whole


def mesh_of(params: qwen2.Params) -> Mesh | None:
    """The mesh that parameters are sharded over, None if they are on one device."""
    for leaf in jax.tree.leaves(params):
        sharding = getattr(leaf, "sharding", None)
        if isinstance(sharding, NamedSharding) and sharding.mesh.size > 1:
            return sharding.mesh  # type: ignore[return-value]
    return None


def difference(here: qwen2.Params, there: qwen2.Params) -> str:
    """Describes the first difference of two trees in structure, shape or dtype; "" if there is none."""
    ours, theirs = _described(here), _described(there)
    for path in sorted(ours | theirs):
        if ours.get(path) != theirs.get(path):
            return f"{path} is {theirs.get(path, 'missing')}, was {ours.get(path, 'missing')}"
    return ""


def _described(params: qwen2.Params) -> dict[str, str]:
    leaves = jax.tree_util.tree_leaves_with_path(params)
    return {jax.tree_util.keystr(path): f"{leaf.dtype}{list(leaf.shape)}" for path, leaf in leaves}
