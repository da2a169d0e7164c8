"""The numbers of a preflight, as plain values and as text."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import jax

from gigpo_jax.devices.memory import ENGINE
from gigpo_jax.tools.preflight.compiled import Compiled
from gigpo_jax.tools.preflight.cost import Cost, count_cost
from gigpo_jax.tools.preflight.hlo import Program
from gigpo_jax.tools.preflight.shapes import Arrays
from gigpo_jax.tools.preflight.targets import Chip

GIB = 2**30
SMALLEST_COPY = 2**20  # bytes of the smallest copy that is reported


def measure_program(
    compiled: Compiled, chip: Chip, array_names: Mapping[tuple[int, ...], str], experts: int = 0
) -> dict[str, Any]:
    """Bytes, operations and seconds of one program on one device.

    Args:
      compiled: Compiled program.
      chip: Kind of device that it is compiled for.
      array_names: Names of arrays by `shape_key`.
      experts: Number of experts in a layer; 0: none.
    """
    # The compiler's numbers: unlike the counted bytes, it includes the padding of tiles.
    memory = compiled.program.memory_analysis()
    text = compiled.program.as_text()
    assert memory is not None
    assert text is not None
    # Not `cost_analysis()`: it counts a loop's body once and says nothing on GPUs.
    cost = count_cost(Program(text, experts), compiled.trips)
    bounds = {
        "memory": cost.bytes / chip.bandwidth,
        "products": cost.operations / chip.operations,
        "links": cost.sent.total() / chip.link,
    }
    # The three can overlap in time, so the longest one is the bound, and not their sum.
    slowest = max(bounds, key=lambda name: bounds[name])
    return {
        "arguments": memory.argument_size_in_bytes,
        "outputs": memory.output_size_in_bytes,
        "aliased": memory.alias_size_in_bytes,
        "temporaries": memory.temp_size_in_bytes,
        "bytes": cost.bytes,
        "operations": cost.operations,
        "collectives": dict(cost.sent),
        "copies": list_copies(cost, array_names),
        "seconds": bounds[slowest],
        "bound": slowest,
        "trips": compiled.trips,
        "runs": compiled.runs,
        "compile_seconds": compiled.seconds,
    }


def list_copies(cost: Cost, array_names: Mapping[tuple[int, ...], str]) -> list[dict[str, Any]]:
    """The copies of a program, largest first."""
    return [
        {
            "array": str(shape),
            "of": array_names.get(shape_key(shape.dims), ""),
            "in_loop": looped,
            "bytes": size,
        }
        for (shape, looped), size in cost.copied.most_common()
        if shape.bytes >= SMALLEST_COPY
    ]


def device_bytes(tree: Any) -> int:
    """Bytes of a tree on one device, without tile padding."""
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(tree)
    )


def shape_key(dims: Iterable[int]) -> tuple[int, ...]:
    """A key that is equal for transposed arrays and ignores axes of length 1."""
    # A copy into another layout transposes the array; its lengths still name it.
    return tuple(sorted(n for n in dims if n > 1))


def name_arrays(arrays: Arrays, cache: Any) -> dict[tuple[int, ...], str]:
    """Names of a device's arrays by `shape_key`: of each array, and of one layer of it."""
    names: dict[tuple[int, ...], str] = {}
    trees = {"weights": (arrays.state.params, arrays.policy.frozen), "KV cache": cache}
    for name, tree in trees.items():
        for leaf in jax.tree.leaves(tree):
            # The program's text has the shapes of one device.
            dims = leaf.sharding.shard_shape(leaf.shape)
            names[shape_key(dims)] = name
            # Weights and cache are stacked by layer along the first axis.
            names[shape_key(dims[1:])] = f"one layer of the {name}"
    return names


def _resident_line(resident: Mapping[str, int]) -> str:
    sizes = ", ".join(f"{name} {size / GIB:.2f}" for name, size in resident.items() if size)
    return f"in memory, GiB a device: {sizes}; together {sum(resident.values()) / GIB:.2f}"


def format_report(result: Mapping[str, Any]) -> str:
    """The numbers of `run.examine` as text, of one device."""
    groups = [result["resident"]]
    if result["engine_devices"]:
        groups = [
            {name: size for name, size in groups[0].items() if (name in ENGINE) == engine_part}
            for engine_part in (False, True)
        ]
    lines = [
        f"{result['target']}: {result['devices']} devices of {result['memory'] / GIB:.2f} GiB",
        *map(_resident_line, groups),
        f"{'program':<10}{'temporaries':>12}{'left':>8}{'moved':>9}{'products':>10}{'sent':>9}"
        f"{'at least':>11}  limit",
        f"{'':<10}{'GiB':>12}{'GiB':>8}{'GB':>9}{'Tflop':>10}{'GB':>9}{'ms':>11}",
    ]
    for name, program in result["programs"].items():
        sent_gb = sum(program["collectives"].values()) / 1e9
        lines.append(
            f"{name:<10}{program['temporaries'] / GIB:>12.2f}{program['left'] / GIB:>8.2f}"
            f"{program['bytes'] / 1e9:>9.2f}{program['operations'] / 1e12:>10.2f}{sent_gb:>9.2f}"
            f"{program['seconds'] * 1e3:>11.2f}  {program['bound']}"
        )
    for name, program in result["programs"].items():
        sent = ", ".join(
            f"{kind} {size / 1e9:.2f} GB" for kind, size in sorted(program["collectives"].items())
        )
        if sent:
            lines.append(f"{name} sends: {sent}")
        for copy in program["copies"][:3]:
            array_name = f" ({copy['of']})" if copy["of"] else ""
            frequency = "in a loop" if copy["in_loop"] else "once"
            lines.append(
                f"{name} copies {frequency}: {copy['array']}{array_name}, "
                f"{copy['bytes'] / 1e9:.2f} GB"
            )
    seconds_by_program = ", ".join(
        f"{name} {seconds:.1f}" for name, seconds in result["iteration"].items()
    )
    lines.append(
        f"an iteration takes at least {sum(result['iteration'].values()):.1f} s: "
        f"{seconds_by_program}"
    )
    return "\n".join(lines)
