"""Reads the text of a compiled program (XLA's HLO): computations, instructions, shapes."""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

_SHAPE = re.compile(r"(\w+)\[([\d,<=]*)\](?:\{([^{}]*)\})?")
_HEADER = re.compile(r"(ENTRY )?%([\w.\-]+) \(.*\{$")
_NAME = re.compile(r"%([\w.\-]+)")
_CALLED = re.compile(r"\b(calls|to_apply|body|condition|branch_computations|true_computation|false_computation)=")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')


@dataclass(frozen=True)
class Shape:
    """An array: its element type, its dimensions, and the memory space it is in (0: the device's main memory)."""

    dtype: str
    dims: tuple[int, ...]
    space: int = 0

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.dims))}]"

    @property
    def elements(self) -> int:
        return math.prod(self.dims)

    @property
    def bytes(self) -> int:
        """Without the padding of tiles; types name their bits, but for pred."""
        digits = re.search(r"\d+", self.dtype)
        bits = 8 if self.dtype == "pred" else int(digits[0]) if digits else 0
        return -(-self.elements * bits // 8)


@dataclass(frozen=True)
class Instruction:
    """One line of a computation.

    Attributes:
      name: unique in the program.
      opcode: as XLA names it, such as dot or fusion.
      shapes: of the result; several for a tuple.
      operands: names of instructions of the same computation; of a parameter its number, of a constant its value.
      attributes: what follows the operands.
      root: whether it is the computation's result.
    """

    name: str
    opcode: str
    shapes: tuple[Shape, ...]
    operands: tuple[str, ...]
    attributes: str
    root: bool

    @property
    def bytes(self) -> int:
        """Of the result in main memory."""
        return sum(shape.bytes for shape in self.shapes if shape.space == 0)

    @cached_property
    def called(self) -> Mapping[str, tuple[str, ...]]:
        """The computations that it runs, by role: calls, body, condition, branch_computations, ..."""
        return dict(_called(self.attributes))

    def attribute(self, name: str) -> str:
        """The value of `name=value` or `name={...}` without its braces; "" if there is none."""
        found = re.search(rf"\b{name}=(?:\{{([^{{}}]*)\}}|([^\s,]+))", self.attributes)
        return "" if found is None else found[1] if found[1] is not None else found[2]


def _called(attributes: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    for found in _CALLED.finditer(attributes):
        rest = attributes[found.end() :]
        several = rest.startswith("{")
        yield found[1], tuple(_NAME.findall(rest[: rest.index("}")] if several else rest.partition(",")[0]))


class Computation:
    """Instructions in order, and by name."""

    def __init__(self, instructions: list[Instruction]) -> None:
        self.instructions = instructions
        self.by_name = {instruction.name: instruction for instruction in instructions}

    @property
    def root(self) -> Instruction:
        return next(x for x in reversed(self.instructions) if x.root)

    def parameter(self, number: int) -> Instruction:
        """The parameter with this number."""
        return next(x for x in self.instructions if x.opcode == "parameter" and x.operands == (str(number),))

    def users(self, name: str) -> list[Instruction]:
        return [x for x in self.instructions if name in x.operands]


class Program:
    """The computations of a program by name, and that which it begins with."""

    def __init__(self, text: str) -> None:
        """Reads `jax.stages.Compiled.as_text()`.

        Raises:
          ValueError: there is no entry computation.
        """
        self.computations: dict[str, Computation] = {}
        self.entry = ""
        name, lines = "", list[Instruction]()
        for line in text.splitlines():
            if begun := _HEADER.match(line):
                name, lines = begun[2], []
                if begun[1]:
                    self.entry = name
            elif line == "}":  # "}}, ..." ends an attribute of several lines
                self.computations[name] = Computation(lines)
            elif " = " in line and name:
                lines.append(_instruction(line.strip()))
        if not self.entry:
            raise ValueError("no ENTRY in the program's text")

    def inside(self, fusion: Instruction) -> Computation:
        """What a fusion computes."""
        return self.computations[fusion.called["calls"][0]]

    def trips(self, loop: Instruction) -> int | None:
        """How often a `while` runs if that is a constant: XLA says it, or its condition counts from 0 to it."""
        if found := _TRIPS.search(loop.attributes):
            return int(found[1])
        condition = self.computations[loop.called["condition"][0]]
        if condition.root.opcode != "compare" or condition.root.attribute("direction") != "LT":
            return None
        limit = condition.by_name[condition.root.operands[1]]
        return int(limit.operands[0]) if limit.opcode == "constant" else None


def _instruction(line: str) -> Instruction:
    head, _, rest = line.partition(" = ")
    end = _end_of_type(rest)
    opcode, _, rest_after = rest[end:].strip().partition("(")
    close = _closing(rest_after)
    inside = rest_after[:close]
    operands = (inside,) if opcode in ("parameter", "constant") else tuple(_NAME.findall(inside))
    return Instruction(
        name=head.partition("%")[2],
        opcode=opcode,
        shapes=tuple(_shapes(rest[:end])),
        operands=operands,
        attributes=rest_after[close + 1 :],
        root=head.startswith("ROOT"),
    )


def _end_of_type(text: str) -> int:
    """Where the type ends: after the tuple's closing parenthesis, or at the first space."""
    return _closing(text[1:]) + 2 if text.startswith("(") else text.index(" ")


def _closing(text: str) -> int:
    """The index of the parenthesis that closes one which was opened before `text`."""
    depth = 1
    for index, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return index
    raise ValueError(f"no closing parenthesis in {text[:80]!r}")


def _shapes(text: str) -> Iterator[Shape]:
    for dtype, dims, layout in _SHAPE.findall(text):
        space = re.search(r"S\((\d+)\)", layout)
        yield Shape(dtype, tuple(int(x.strip("<=")) for x in dims.split(",") if x), int(space[1]) if space else 0)
