"""Cost of a compiled program, counted in its text: bytes, operations, copies, messages.

`Compiled.cost_analysis()` counts the body of a loop once, and gives nothing on GPUs. Here a body
counts as often as it runs. The numbers are of one device, lower bounds of what a chip does: every
array is moved once for each instruction that uses it, and nothing else takes time.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from gigpo_jax.learner.expected_tokens import FILL
from gigpo_jax.tools.preflight.hlo import Computation, Instruction, Program, Shape

COLLECTIVES = (
    "all-gather",
    "all-reduce",
    "all-to-all",
    "collective-broadcast",
    "collective-permute",
    "reduce-scatter",
)
# Instructions that move nothing: they name, group or end others.
_FREE = (
    "after-all",
    "bitcast",
    "constant",
    "get-tuple-element",
    "opt-barrier",
    "parameter",
    "partition-id",
    "tuple",
)
# These read the part that they return, and not all of their first operand.
_SLICES = ("dynamic-slice", "gather", "slice")
# A fusion of nothing but these computes nothing: the array only gets another layout.
_MOVES = ("copy", "dynamic-slice", "slice", "transpose")
# Attention kernels by a fragment of their name: number of products of queries x keys, and the axis
# of the queries that counts tokens.
_ATTENTION = {
    "splash_mha_fwd": (2, -2),
    "splash_mha_dkv": (4, -2),
    "splash_mha_dq": (3, -2),
    "SoftmaxBackward": (5, 1),
    "__cudnn$fmha": (2, 1),
}


# In the name of a call of `models.decode_kernel`. Its products do not count: they are few beside
# the products with weights.
_DECODE_KERNEL = "decode_attention"
# Fragments of the names of products that are grouped by expert.
_GROUPED = ("ragged-dot-none", "tgmm")


@dataclass
class Cost:
    """Cost of one run of a program on one device.

    Attributes:
      bytes: Bytes read from and written to main memory.
      operations: Operations of matrix products; a multiplication and an addition are two.
      sent: Bytes by kind of collective, of its larger side.
      copied: Bytes written by copies, transposes and slices, by (array, whether in a loop).
    """

    bytes: int = 0
    operations: float = 0.0
    sent: Counter[str] = field(default_factory=Counter)
    copied: Counter[tuple[Shape, bool]] = field(default_factory=Counter)


def count_cost(program: Program, trips: Sequence[int]) -> Cost:
    """Counts the cost of a program, where a conditional counts as its cheapest branch.

    The conditionals are the sampler's, for top-k and top-p, which are off by default.

    Args:
      program: Compiled program.
      trips: Numbers of turns of loops for which XLA knows none, from the outermost in: over tokens
        or microbatches, and over the filled blocks of a cache; further loops count once.
    """
    total = Cost()
    _add_computation(program, program.computations[program.entry], trips, 1, False, total)
    return total


def _add_computation(
    program: Program,
    computation: Computation,
    trips: Sequence[int],
    times: int,
    looped: bool,
    total: Cost,
) -> None:
    for step in computation.instructions:
        kind = step.opcode.removesuffix("-start")
        # An asynchronous instruction is counted where it starts.
        if step.opcode in _FREE or step.opcode.endswith(("-done", "-update")):
            continue
        if step.opcode == "while":
            body = program.computations[step.called["body"][0]]
            turns = program.constant_trips(step)
            inner_trips = trips
            # XLA knows no number: the loop is one over tokens, microbatches or blocks, in this
            # order from the outermost. Loops inside get the rest of the list.
            if not turns:
                turns = trips[0] if trips else 1
                inner_trips = trips[1:]
            _add_computation(program, body, inner_trips, times * turns, True, total)
        elif step.opcode == "conditional":
            _add_cheapest(program, step, trips, times, looped, total)
        elif step.opcode in ("call", "async-start"):
            (inner,) = step.called.get("to_apply") or step.called["calls"]
            _add_computation(program, program.computations[inner], trips, times, looped, total)
        else:
            total.bytes += times * _moved_bytes(program, computation, step)
            total.operations += times * _count_operations(program, computation, step)
            if kind in COLLECTIVES:
                total.sent[kind] += times * _larger_side(computation, step)
            for shape in _copied_arrays(program, computation, step):
                total.copied[shape, looped] += times * shape.bytes


def _add_cheapest(
    program: Program, step: Instruction, trips: Sequence[int], times: int, looped: bool, total: Cost
) -> None:
    branches = [name for role in sorted(step.called) for name in step.called[role]]
    costs = []
    for branch in branches:
        cost = Cost()
        _add_computation(program, program.computations[branch], trips, times, looped, cost)
        costs.append(cost)
    cheapest = min(costs, key=lambda cost: cost.bytes)
    total.bytes += cheapest.bytes
    total.operations += cheapest.operations
    total.sent += cheapest.sent
    total.copied += cheapest.copied


def _moved_bytes(program: Program, computation: Computation, step: Instruction) -> int:
    """Bytes that an instruction moves from and to main memory."""
    inputs = [computation.by_name[name] for name in step.operands]
    if step.opcode == "fusion":
        body = program.inside(step)
        read = 0
        for number, value in enumerate(inputs):
            # What lies in on-chip memory was paid for by the copy that brought it there.
            if value.bytes:
                read += _read_bytes(program, body, body.parameter(number))
        written = 0
        # A result in on-chip memory is not written to main memory.
        for shape, value in _results(body, step):
            if shape.space == 0:
                written += _written_bytes(body, value)
        return read + written
    if step.opcode in ("dynamic-update-slice", "scatter"):
        # In place: the update is read, and as many bytes of the array are written. Counted whole,
        # the cache would be written anew for every token.
        return 2 * inputs[-1 if step.opcode == "scatter" else 1].bytes
    results = _new_arrays(inputs, step)
    if step.opcode.removesuffix("-start") in (*_SLICES, "copy"):
        # Only the slice is read, and each side counts if it is in main memory.
        sides = (results[0].space == 0) + bool(inputs[0].bytes)
        return results[0].bytes * sides
    read = 0
    # An iota reads nothing, and what a broadcast reads is small beside its result.
    if _DECODE_KERNEL in step.attributes:
        read = sum(_cache_bytes(value, inputs[0]) for value in inputs)
    elif step.opcode not in ("iota", "broadcast"):
        read = sum(value.bytes for value in inputs)
    return read + sum(shape.bytes for shape in results if shape.space == 0)


def _cache_bytes(value: Instruction, query: Instruction) -> int:
    """Bytes of an operand that the decode kernel reads.

    Of a cache [L, S, G, C, K] the kernel reads the filled part of one layer, in a slot for each row
    of the query.
    """
    dims = value.shapes[0].dims
    if len(dims) != 5:
        return value.bytes
    return int(FILL * value.bytes / dims[0] * min(1, query.shapes[0].dims[0] / dims[1]))


def _new_arrays(inputs: list[Instruction], step: Instruction) -> list[Shape]:
    """The arrays that an instruction makes, without the inputs that an asynchronous one names."""
    results = list(step.shapes)
    if step.opcode.endswith("-start"):
        for value in inputs:
            for shape in value.shapes:
                if shape in results:
                    results.remove(shape)
    return results


def _results(body: Computation, fusion: Instruction) -> list[tuple[Shape, Instruction]]:
    """Arrays that a fusion makes, with the instructions computing them."""
    values = [body.root]
    if body.root.opcode == "tuple":
        values = [body.by_name[name] for name in body.root.operands]
    return list(zip(fusion.shapes, values))


def _read_bytes(program: Program, body: Computation, value: Instruction) -> int:
    """Bytes of a parameter that a fused computation reads, which are its slices if it is sliced."""
    whole = sum(shape.bytes for shape in value.shapes)
    read = 0
    for user in body.users(value.name):
        # An array can also be an index of a slice, and is then read whole.
        is_first = user.operands[0] == value.name
        # The other operands of a slice are its indices.
        if user.opcode in _SLICES and is_first:
            read += sum(shape.bytes for shape in user.shapes)
        elif user.opcode in ("dynamic-update-slice", "scatter") and is_first:
            continue  # written in place
        elif user.opcode == "bitcast":
            read += _read_bytes(program, body, user)
        elif user.opcode == "fusion":
            inner = program.inside(user)
            for number, name in enumerate(user.operands):
                if name == value.name:
                    read += _read_bytes(program, inner, inner.parameter(number))
        else:
            # This instruction reads all of it, so the sum over users ends here.
            return whole
    # Overlapping slices are read from main memory once at most, as a lower bound.
    return min(read, whole)


def _written_bytes(body: Computation, value: Instruction) -> int:
    """Bytes that a fused computation writes; of an update in place only the update."""
    if value.opcode == "bitcast":
        return _written_bytes(body, body.by_name[value.operands[0]])
    if value.opcode in ("dynamic-update-slice", "scatter"):
        update = value.operands[1 if value.opcode == "dynamic-update-slice" else -1]
        return sum(shape.bytes for shape in body.by_name[update].shapes)
    return sum(shape.bytes for shape in value.shapes)


def _larger_side(computation: Computation, step: Instruction) -> int:
    """The larger side of a collective."""
    inputs = [computation.by_name[name] for name in step.operands]
    read = sum(shape.bytes for x in inputs for shape in x.shapes)
    return max(read, sum(shape.bytes for shape in _new_arrays(inputs, step)))


def _copied_arrays(program: Program, computation: Computation, step: Instruction) -> list[Shape]:
    """Arrays in main memory that an instruction copies without computing."""
    if step.opcode in _MOVES or step.opcode == "copy-start":
        inputs = [computation.by_name[name] for name in step.operands]
        return [
            shape for shape in _new_arrays(inputs, step) if shape.space == 0 and inputs[0].bytes
        ]
    if step.opcode == "fusion":
        body = program.inside(step)
        return [
            shape
            for shape, value in _results(body, step)
            if shape.space == 0 and _is_moved(body, value)
        ]
    return []


def _is_moved(body: Computation, value: Instruction) -> bool:
    while value.opcode in (*_MOVES, "bitcast", "reshape"):
        value = body.by_name[value.operands[0]]
    return value.opcode == "parameter"


def _count_operations(program: Program, computation: Computation, step: Instruction) -> float:
    """Operations of the matrix products in an instruction."""
    if step.opcode == "fusion":
        body = program.inside(step)
        return sum(_count_operations(program, body, inner) for inner in body.instructions)
    if step.opcode == "dot":
        left_operand = computation.by_name[step.operands[0]].shapes[0]
        axes = [int(axis) for axis in step.attribute("lhs_contracting_dims").split(",") if axis]
        return 2.0 * step.shapes[0].elements * math.prod(left_operand.dims[axis] for axis in axes)
    if step.opcode == "convolution":
        return _convolution_operations(computation, step)
    if step.opcode == "custom-call":
        return _custom_call_operations(program, computation, step)
    return 0.0


def _convolution_operations(computation: Computation, step: Instruction) -> float:
    """Operations of a convolution.

    On TPUs a matrix product is written as a convolution. The axes of a batch are then spatial axes
    with holes between the entries.
    """
    image_shape, kernel_shape = (computation.by_name[name].shapes[0] for name in step.operands[:2])
    names, _, out_names = step.attribute("dim_labels").partition("->")
    left_names, _, right_names = names.partition("_")
    result = dict(zip(out_names, step.shapes[0].dims))
    kernel = dict(zip(right_names, kernel_shape.dims))
    image = dict(zip(left_names, image_shape.dims))
    # window={size=2x3 stride=1x2 pad=0_1x0_0 lhs_dilate=...}
    window = dict(setting.split("=") for setting in step.attribute("window").split())
    spatial = [name for name in out_names if name.isdigit()]

    def numbers(name: str, default: str) -> list[str]:
        return window.get(name, "x".join([default] * len(spatial))).split("x")

    strides = numbers("stride", "1")
    pads = numbers("pad", "0_0")
    left_holes = numbers("lhs_dilate", "1")
    right_holes = numbers("rhs_dilate", "1")
    products: int = result["b"] * result["f"] * kernel["i"]
    for axis in spatial:
        index = int(axis)
        stride = int(strides[index])
        hole = int(left_holes[index])
        gap = int(right_holes[index])
        pad = int(pads[index].split("_")[0])
        last = (image[axis] - 1) * hole
        axis_products = 0
        # Counted one by one: with padding and holes there is no short formula.
        for output in range(result[axis]):
            for tap in range(kernel[axis]):
                position = output * stride - pad + tap * gap
                # Padding and holes are no entries of the image.
                if 0 <= position <= last and position % hole == 0:
                    axis_products += 1
        products *= axis_products
    return 2.0 * products


def _custom_call_operations(program: Program, computation: Computation, step: Instruction) -> float:
    """Operations of cuBLAS products, attention kernels, and Pallas kernels with an estimate."""
    inputs = [computation.by_name[name].shapes[0] for name in step.operands]
    target = step.attribute("custom_call_target").strip('"')
    estimate = re.search(r'"cost_estimate":\{[^{}]*"flops":"?(\d+)', step.attributes)
    if estimate:
        return float(estimate[1]) * _expert_share(program, inputs, step)
    contraction = re.search(r'"lhs_contracting_dimensions":(\[[^\]]*\])', step.attributes)
    if contraction:
        axes = [int(axis) for axis in json.loads(contraction[1])]
        return 2.0 * step.shapes[0].elements * math.prod(inputs[0].dims[axis] for axis in axes)
    for fragment, (products, token_axis) in _ATTENTION.items():
        # The other kernels state no count of operations, so their names tell what they are.
        if fragment in step.name or fragment in target:
            # cuDNN has them first. Before the inputs of splash attention come masks, which are no
            # floats, and offsets.
            floats = [shape for shape in inputs if shape.dtype.startswith(("f", "bf"))]
            query = inputs[0] if "fmha" in target else max(floats, key=lambda x: x.elements)
            # Half of 2 x elements x tokens: attention is causal.
            return products * query.elements * query.dims[token_axis]
    return 0.0


def _expert_share(program: Program, inputs: Sequence[Shape], step: Instruction) -> float:
    """Share of its rows that a grouped product multiplies.

    A device that holds some of the experts has the rows of all experts, and multiplies the rows of
    its own ones. Tokens are assumed to choose all experts equally often.
    """
    if not program.experts or not any(name in step.attributes for name in _GROUPED):
        return 1.0
    # Matrices of experts [E, I, O]: an operand, or the result of a gradient.
    (local,) = (shape.dims[0] for shape in (*inputs, *step.shapes) if len(shape.dims) == 3)
    return local / program.experts
