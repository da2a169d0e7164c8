"""What a compiled program reads, writes, computes, copies and sends, counted in its text.

`Compiled.cost_analysis()` counts the body of a loop once, and gives nothing on GPUs. Here a body counts as often as it
runs. The numbers are of one device, lower bounds of what a chip does: every array is moved once for each instruction
that uses it, and nothing else takes time.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from gigpo_jax.preflight.hlo import Computation, Instruction, Program, Shape

COLLECTIVES = ("all-gather", "all-reduce", "all-to-all", "collective-broadcast", "collective-permute", "reduce-scatter")
# They move nothing: they name, group or end what others do.
_FREE = ("after-all", "bitcast", "constant", "get-tuple-element", "opt-barrier", "parameter", "partition-id", "tuple")
_SLICES = ("dynamic-slice", "gather", "slice")
_MOVES = ("copy", "dynamic-slice", "slice", "transpose")
# Attention kernels by a part of their name: products of queries x keys, and which axis of the queries counts tokens.
_ATTENTION = {
    "splash_mha_fwd": (2, -2),
    "splash_mha_dkv": (4, -2),
    "splash_mha_dq": (3, -2),
    "SoftmaxBackward": (5, 1),
    "__cudnn$fmha": (2, 1),
}


@dataclass
class Cost:
    """Of one device and one run of a program.

    Attributes:
      bytes: read from and written to main memory.
      operations: of matrix products, a multiplication and an addition counted as two.
      sent: bytes by kind of collective, of its larger side.
      copied: bytes written by copies, transposes and slices, by (array, whether it is in a loop).
    """

    bytes: int = 0
    operations: float = 0.0
    sent: Counter[str] = field(default_factory=Counter)
    copied: Counter[tuple[Shape, bool]] = field(default_factory=Counter)


def cost(program: Program, trips: Sequence[int]) -> Cost:
    """Counts a program.

    A conditional counts as its cheapest branch: those of the sampler are for top-k and top-p.

    Args:
      program: as compiled.
      trips: how often loops run whose number of turns XLA does not know, from the outermost in: over tokens or
        microbatches, and over the filled blocks of a cache; further ones count once.
    """
    total = Cost()
    _add(program, program.computations[program.entry], trips, 1, False, total)
    return total


def _add(
    program: Program, computation: Computation, trips: Sequence[int], times: int, looped: bool, total: Cost
) -> None:
    for step in computation.instructions:
        kind = step.opcode.removesuffix("-start")
        if step.opcode in _FREE or step.opcode.endswith(("-done", "-update")):
            continue
        if step.opcode == "while":
            known, body = program.trips(step), program.computations[step.called["body"][0]]
            turns, deeper = (known, trips) if known else (next(iter(trips), 1), trips[1:])
            _add(program, body, deeper, times * turns, True, total)
        elif step.opcode == "conditional":
            _add_cheapest(program, step, trips, times, looped, total)
        elif step.opcode in ("call", "async-start"):
            (inner,) = step.called.get("to_apply") or step.called["calls"]
            _add(program, program.computations[inner], trips, times, looped, total)
        else:
            total.bytes += times * _moved(program, computation, step)
            total.operations += times * _operations(program, computation, step)
            if kind in COLLECTIVES:
                total.sent[kind] += times * _largest(computation, step)
            for shape in _copied(program, computation, step):
                total.copied[shape, looped] += times * shape.bytes


def _add_cheapest(
    program: Program, step: Instruction, trips: Sequence[int], times: int, looped: bool, total: Cost
) -> None:
    branches = [name for role in sorted(step.called) for name in step.called[role]]
    costs = []
    for branch in branches:
        one = Cost()
        _add(program, program.computations[branch], trips, times, looped, one)
        costs.append(one)
    least = min(costs, key=lambda one: one.bytes)
    total.bytes += least.bytes
    total.operations += least.operations
    total.sent += least.sent
    total.copied += least.copied


def _moved(program: Program, computation: Computation, step: Instruction) -> int:
    """Bytes that an instruction reads from main memory and writes to it."""
    inputs = [computation.by_name[name] for name in step.operands]
    if step.opcode == "fusion":
        body = program.inside(step)
        read = sum(_read(program, body, body.parameter(n)) for n, x in enumerate(inputs) if x.bytes)
        return read + sum(_written(body, value) for shape, value in _results(body, step) if shape.space == 0)
    if step.opcode in ("dynamic-update-slice", "scatter"):
        return 2 * inputs[-1 if step.opcode == "scatter" else 1].bytes
    written = _new(inputs, step)
    if step.opcode.removesuffix("-start") in (*_SLICES, "copy"):
        return written[0].bytes * ((written[0].space == 0) + bool(inputs[0].bytes))
    read = 0 if step.opcode in ("iota", "broadcast") else sum(x.bytes for x in inputs)
    return read + sum(shape.bytes for shape in written if shape.space == 0)


def _new(inputs: list[Instruction], step: Instruction) -> list[Shape]:
    """The arrays that an instruction makes; the result of an asynchronous one names its inputs too."""
    made = list(step.shapes)
    if step.opcode.endswith("-start"):
        for shape in (shape for x in inputs for shape in x.shapes if shape in made):
            made.remove(shape)
    return made


def _results(body: Computation, fusion: Instruction) -> list[tuple[Shape, Instruction]]:
    """The arrays that a fusion makes, each with the instruction inside that computes it."""
    values = [body.by_name[name] for name in body.root.operands] if body.root.opcode == "tuple" else [body.root]
    return list(zip(fusion.shapes, values))


def _read(program: Program, body: Computation, value: Instruction) -> int:
    """Bytes of a parameter that a fused computation reads: of what it takes slices of, the slices."""
    whole, read = sum(shape.bytes for shape in value.shapes), 0
    for user in body.users(value.name):
        first = user.operands[0] == value.name
        if user.opcode in _SLICES and first:
            read += sum(shape.bytes for shape in user.shapes)
        elif user.opcode in ("dynamic-update-slice", "scatter") and first:
            continue  # written in place
        elif user.opcode == "bitcast":
            read += _read(program, body, user)
        elif user.opcode == "fusion":
            inner = program.inside(user)
            named = [n for n, name in enumerate(user.operands) if name == value.name]
            read += sum(_read(program, inner, inner.parameter(n)) for n in named)
        else:
            return whole
    return min(read, whole)


def _written(body: Computation, value: Instruction) -> int:
    """Bytes that a fused computation writes: of what it updates in place, the update."""
    if value.opcode == "bitcast":
        return _written(body, body.by_name[value.operands[0]])
    if value.opcode in ("dynamic-update-slice", "scatter"):
        update = value.operands[1 if value.opcode == "dynamic-update-slice" else -1]
        return sum(shape.bytes for shape in body.by_name[update].shapes)
    return sum(shape.bytes for shape in value.shapes)


def _largest(computation: Computation, step: Instruction) -> int:
    """The larger side of a collective."""
    inputs = [computation.by_name[name] for name in step.operands]
    read = sum(shape.bytes for x in inputs for shape in x.shapes)
    return max(read, sum(shape.bytes for shape in _new(inputs, step)))


def _copied(program: Program, computation: Computation, step: Instruction) -> list[Shape]:
    """The arrays in main memory that an instruction makes of one there without computing anything."""
    if step.opcode in _MOVES or step.opcode == "copy-start":
        inputs = [computation.by_name[name] for name in step.operands]
        return [shape for shape in _new(inputs, step) if shape.space == 0 and inputs[0].bytes]
    if step.opcode == "fusion":
        body = program.inside(step)
        return [s for s, value in _results(body, step) if s.space == 0 and _is_moved(body, value)]
    return []


def _is_moved(body: Computation, value: Instruction) -> bool:
    while value.opcode in (*_MOVES, "bitcast", "reshape"):
        value = body.by_name[value.operands[0]]
    return value.opcode == "parameter"


def _operations(program: Program, computation: Computation, step: Instruction) -> float:
    """Operations of the matrix products in an instruction."""
    if step.opcode == "fusion":
        body = program.inside(step)
        return sum(_operations(program, body, inner) for inner in body.instructions)
    if step.opcode == "dot":
        left = computation.by_name[step.operands[0]].shapes[0]
        contracted = (int(n) for n in step.attribute("lhs_contracting_dims").split(",") if n)
        return 2.0 * step.shapes[0].elements * math.prod(left.dims[n] for n in contracted)
    if step.opcode == "convolution":
        return _convolution(computation, step)
    if step.opcode == "custom-call":
        return _custom_call(computation, step)
    return 0.0


def _convolution(computation: Computation, step: Instruction) -> float:
    """On TPUs a product is a convolution; the axes of a batch are then spatial ones with holes between the entries."""
    left, right = (computation.by_name[name].shapes[0] for name in step.operands[:2])
    names, _, out_names = step.attribute("dim_labels").partition("->")
    left_names, _, right_names = names.partition("_")
    result = dict(zip(out_names, step.shapes[0].dims))
    kernel, image = dict(zip(right_names, right.dims)), dict(zip(left_names, left.dims))
    # window={size=2x3 stride=1x2 pad=0_1x0_0 lhs_dilate=...}
    window = dict(part.split("=") for part in step.attribute("window").split())
    spatial = [name for name in out_names if name.isdigit()]

    def numbers(name: str, default: str) -> list[str]:
        return window.get(name, "x".join([default] * len(spatial))).split("x")

    strides, pads, left_holes, right_holes = (
        numbers(*x) for x in (("stride", "1"), ("pad", "0_0"), ("lhs_dilate", "1"), ("rhs_dilate", "1"))
    )
    products: int = result["b"] * result["f"] * kernel["i"]
    for axis in spatial:
        n = int(axis)
        stride, hole, gap, pad = int(strides[n]), int(left_holes[n]), int(right_holes[n]), int(pads[n].split("_")[0])
        places = ((at * stride - pad + k * gap) for at in range(result[axis]) for k in range(kernel[axis]))
        products *= sum(1 for place in places if 0 <= place <= (image[axis] - 1) * hole and place % hole == 0)
    return 2.0 * products


def _custom_call(computation: Computation, step: Instruction) -> float:
    """cuBLAS products, attention kernels, and Pallas kernels that say what they cost."""
    inputs = [computation.by_name[name].shapes[0] for name in step.operands]
    target = step.attribute("custom_call_target").strip('"')
    if found := re.search(r'"cost_estimate":\{[^{}]*"flops":"?(\d+)', step.attributes):
        return float(found[1])
    if found := re.search(r'"lhs_contracting_dimensions":(\[[^\]]*\])', step.attributes):
        contracted = [int(n) for n in json.loads(found[1])]
        return 2.0 * step.shapes[0].elements * math.prod(inputs[0].dims[n] for n in contracted)
    for part, (products, tokens) in _ATTENTION.items():
        if part in step.name or part in target:
            query = max((x for x in inputs if len(x.dims) >= 3), key=lambda x: x.elements)
            return products * query.elements * query.dims[tokens]  # half of 2 x elements x tokens: it is causal
    return 0.0
