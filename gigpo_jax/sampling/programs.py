"""The compiled programs of an engine, one for each shape, and the arrays on the device that they work on."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from gigpo_jax.models import qwen2
from gigpo_jax.sampling import slots as device


class Programs:
    """Runs `slots.admit` and `slots.advance` on a cache and slots that stay on the device.

    Executables are compiled ahead of time: a new shape raises `compile_count`, there is no silent recompilation.

    Attributes:
      compile_count: programs compiled so far.
    """

    def __init__(
        self,
        config: qwen2.Qwen2Config,
        *,
        slots: int,
        max_length: int,
        decode_steps: int,
        dtype: Any,
        mesh: Mesh | None,
    ):
        """Allocates nothing yet.

        Args:
          config: the model's shape.
          slots: S.
          max_length: length of the cache, tokens.
          decode_steps: steps of `advance`, at most.
          dtype: of the computation and of the cache.
          mesh: over which the cache is sharded; None for one device.
        """
        self.compile_count = 0
        self._config = config
        self._slots = slots
        self._max_length = max_length
        self._decode_steps = decode_steps
        self._dtype = jnp.dtype(dtype)
        self._mesh = mesh
        self._compiled: dict[Any, Any] = {}
        self._cache: Any = None
        self._state: Any = None

    def prepare(self, params: qwen2.Params) -> qwen2.Params:
        """Returns parameters in the dtype of the computation, as `admit` and `advance` take them."""
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
        decode = functools.partial(qwen2.decode, self._config)
        return self._step("advance", functools.partial(device.advance, decode, self._decode_steps), params, control)

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
        cache = qwen2.init_cache(self._config, self._slots, self._max_length, self._dtype)
        return cache, device.init_slots(self._slots)

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
    """Returns the mesh that parameters are sharded over, None if they are on one device."""
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
