"""The numbers of a preflight, as JSON has them and as text."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import jax

from gigpo_jax.preflight.cost import Cost, cost
from gigpo_jax.preflight.hlo import Program
from gigpo_jax.preflight.programs import Arrays, Compiled
from gigpo_jax.preflight.targets import Chip
from gigpo_jax.run.memory import ENGINE

GIB, MIB = 2**30, 2**20
COPY = MIB  # smaller copies are not reported


def measured(found: Compiled, chip: Chip, known: Mapping[tuple[int, ...], str]) -> dict[str, Any]:
    """Of one program.

    Args:
      found: the program.
      chip: that it is compiled for.
      known: what arrays are, by `lengths` of their shapes.
    """
    memory, text = found.program.memory_analysis(), found.program.as_text()
    assert memory is not None
    assert text is not None
    counted = cost(Program(text), found.trips)
    bounds = {
        "memory": counted.bytes / chip.bandwidth,
        "products": counted.operations / chip.operations,
        "links": counted.sent.total() / chip.link,
    }
    slowest = max(bounds, key=lambda name: bounds[name])
    return {
        "arguments": memory.argument_size_in_bytes,
        "outputs": memory.output_size_in_bytes,
        "aliased": memory.alias_size_in_bytes,
        "temporaries": memory.temp_size_in_bytes,
        "bytes": counted.bytes,
        "operations": counted.operations,
        "collectives": dict(counted.sent),
        "copies": copies(counted, known),
        "seconds": bounds[slowest],
        "bound": slowest,
        "trips": found.trips,
        "runs": found.runs,
        "compile_seconds": found.seconds,
    }


def copies(counted: Cost, known: Mapping[tuple[int, ...], str]) -> list[dict[str, Any]]:
    """The copies of a program, largest first."""
    return [
        {"array": str(shape), "of": known.get(lengths(shape.dims), ""), "in_loop": looped, "bytes": size}
        for (shape, looped), size in counted.copied.most_common()
        if shape.bytes >= COPY
    ]


def device_bytes(tree: Any) -> int:
    """Of the arrays of a tree on one device, without the padding of tiles."""
    return sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def lengths(dims: Iterable[int]) -> tuple[int, ...]:
    """What stays the same when an array is transposed or an axis of length 1 comes or goes."""
    return tuple(sorted(n for n in dims if n > 1))


def known_arrays(held: Arrays, cache: Any) -> dict[tuple[int, ...], str]:
    """What arrays of a device are, whole and one layer of them, by `lengths`."""
    found: dict[tuple[int, ...], str] = {}
    trees = {"weights": (held.state.params, held.frozen), "KV cache": cache}
    for name, tree in trees.items():
        for leaf in jax.tree.leaves(tree):
            dims = leaf.sharding.shard_shape(leaf.shape)
            found |= {lengths(dims): name, lengths(dims[1:]): f"one layer of the {name}"}
    return found


def _kept(resident: Mapping[str, int]) -> str:
    parts = ", ".join(f"{name} {size / GIB:.2f}" for name, size in resident.items() if size)
    return f"in memory, GiB a device: {parts}; together {sum(resident.values()) / GIB:.2f}"


def text(result: Mapping[str, Any]) -> str:
    """The numbers of `run.examine` for a reader; of one device, where nothing else is said."""
    groups = [result["resident"]]
    if result["engine_devices"]:
        groups = [{x: size for x, size in groups[0].items() if (x in ENGINE) == of} for of in (False, True)]
    shown = [
        f"{result['target']}: {result['devices']} devices of {result['memory'] / GIB:.1f} GiB",
        *map(_kept, groups),
        f"{'program':<10}{'temporaries':>12}{'left':>8}{'moved':>9}{'products':>10}{'sent':>9}{'at least':>11}  limit",
        f"{'':<10}{'GiB':>12}{'GiB':>8}{'GB':>9}{'Tflop':>10}{'GB':>9}{'ms':>11}",
    ]
    for name, one in result["programs"].items():
        shown.append(
            f"{name:<10}{one['temporaries'] / GIB:>12.2f}{one['left'] / GIB:>8.2f}{one['bytes'] / 1e9:>9.2f}"
            f"{one['operations'] / 1e12:>10.2f}{sum(one['collectives'].values()) / 1e9:>9.2f}"
            f"{one['seconds'] * 1e3:>11.2f}  {one['bound']}"
        )
    for name, one in result["programs"].items():
        sent = ", ".join(f"{kind} {size / 1e9:.2f} GB" for kind, size in sorted(one["collectives"].items()))
        shown += [f"{name} sends: {sent}"] if sent else []
        for copy in one["copies"][:3]:
            what = f" ({copy['of']})" if copy["of"] else ""
            where = "in a loop" if copy["in_loop"] else "once"
            shown.append(f"{name} copies {where}: {copy['array']}{what}, {copy['bytes'] / 1e9:.2f} GB")
    parts = ", ".join(f"{name} {seconds:.1f}" for name, seconds in result["iteration"].items())
    shown.append(f"an iteration takes at least {sum(result['iteration'].values()):.1f} s: {parts}")
    return "\n".join(shown)
