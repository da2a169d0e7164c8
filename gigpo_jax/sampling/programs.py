"""The compiled programs of an engine, one for each shape, and the arrays on the device that they work on."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from gigpo_jax.models import qwen2, unstacked
from gigpo_jax.sampling import slots as device


class Prepared(NamedTuple):
    """Parameters as the programs take them: as they came but for the dtype, and on a CPU the layers apart."""

    params: qwen2.Params
    layers: tuple[qwen2.Params, ...] | None


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
        self._unstacked = mesh is None and jax.default_backend() == "cpu"
        self._compiled: dict[Any, Any] = {}
        self._cache: Any = None
        self._state: Any = None

    def prepare(self, params: qwen2.Params) -> Prepared:
        """Puts parameters into the dtype that is computed in, and on a CPU their layers beside them once more."""
        leaves, tree = jax.tree.flatten(params)
        others = [number for number, leaf in enumerate(leaves) if leaf.dtype != self._dtype]
        if others:  # arrays of the right dtype are not copied: with an adapter that is nearly all of them
            cast = self._once("cast", lambda some: [x.astype(self._dtype) for x in some], [leaves[n] for n in others])
            for number, leaf in zip(others, cast, strict=True):
                leaves[number] = leaf
            params = jax.tree.unflatten(tree, leaves)
        if not self._unstacked:
            return Prepared(params, None)
        return Prepared(params, self._once("unstack", functools.partial(unstacked.unstack, self._config), params))

    def admit(self, prepared: Prepared, rows: np.ndarray) -> jax.Array:
        """Reads prompts and draws their first tokens; rows and result as in `slots.admit`."""
        module = unstacked if self._unstacked else qwen2

        def prefill(prepared: Prepared, *args: Any) -> Any:
            return module.prefill(self._config, prepared.params, *args)

        return self._step(rows.shape, functools.partial(device.admit, prefill), prepared, rows)

    def advance(self, prepared: Prepared, control: np.ndarray) -> jax.Array:
        """Draws tokens for all active slots; control and result as in `slots.advance`."""

        def decode(prepared: Prepared, *args: Any) -> Any:
            if prepared.layers is None:
                return qwen2.decode(self._config, prepared.params, *args)
            return unstacked.decode(self._config, prepared.params, prepared.layers, *args)

        step = functools.partial(device.advance, decode, self._decode_steps)
        return self._step("advance", step, prepared, control)

    def reset(self) -> None:
        """Drops cache and slots, after a failure or at the end; the next call makes new ones."""
        self._cache = self._state = None

    def _step(self, name: Any, function: Callable[..., Any], prepared: Prepared, message: np.ndarray) -> jax.Array:
        if self._cache is None:
            self._cache, self._state = self._empty()
        if name not in self._compiled:
            cache, rest = self._shardings()
            out_shardings = None if self._mesh is None else (cache, rest, rest)
            step = jax.jit(function, donate_argnums=(1, 2), out_shardings=out_shardings)
            self._compile(name, step, prepared, self._cache, self._state, message)
        self._cache, self._state, out = self._compiled[name](prepared, self._cache, self._state, message)
        return out

    def _empty(self) -> tuple[Any, Any]:
        def make() -> tuple[Any, Any]:
            module = unstacked if self._unstacked else qwen2
            cache = module.init_cache(self._config, self._slots, self._max_length, self._dtype)
            return cache, device.init_slots(self._slots)

        if "empty" not in self._compiled:
            out_shardings = None if self._mesh is None else self._shardings()
            self._compile("empty", jax.jit(make, out_shardings=out_shardings))
        return self._compiled["empty"]()

    def _once(self, name: str, function: Callable[..., Any], params: Any) -> Any:
        if name not in self._compiled:
            self._compile(name, jax.jit(function), params)
        return self._compiled[name](params)

    def _compile(self, name: Any, function: Any, *args: Any) -> None:
        self._compiled[name] = function.lower(*args).compile()
        self.compile_count += 1

    def _shardings(self) -> tuple[Any, Any]:
        """Shardings of the cache [L, S, G, C, K], by heads over `tensor`, and of all else; None without a mesh."""
        if self._mesh is None:
            return None, None
        split = dict(self._mesh.shape).get("tensor", 1)
        heads = "tensor" if split > 1 and self._config.num_kv_heads % split == 0 else None
        spread = PartitionSpec(None, None, heads)
        return NamedSharding(self._mesh, spread), NamedSharding(self._mesh, PartitionSpec())


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
