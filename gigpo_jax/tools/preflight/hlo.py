"""Parser of the text of a compiled program (XLA's HLO)."""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

# "<=" marks a dimension of bounded dynamic length; its bound is counted.
_SHAPE = re.compile(r"(\w+)\[([\d,<=]*)\](?:\{([^{}]*)\})?")
_HEADER = re.compile(r"(ENTRY )?%([\w.\-]+) \(.*\{$")
_NAME = re.compile(r"%([\w.\-]+)")
_CALLED = re.compile(
    r"\b(calls|to_apply|body|condition|branch_computations|true_computation|false_computation)="
)
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')


@dataclass(frozen=True)
class Shape:
    """An array: element type, dimensions and memory space, where 0 is the device's main memory."""

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
        """Bytes without the padding of tiles."""
        # Types name their bits, except pred.
        digits = re.search(r"\d+", self.dtype)
        bits = int(digits[0]) if digits else 0
        if self.dtype == "pred":
            bits = 8
        return -(-self.elements * bits // 8)


@dataclass(frozen=True)
class Instruction:
    """One line of a computation.

    Attributes:
      name: Name, unique in the program.
      opcode: XLA's name of the operation, such as dot or fusion.
      shapes: Shapes of the result; several for a tuple.
      operands: Names of instructions of the same computation; the number of a parameter, the value
        of a constant.
      attributes: Text after the operands.
      root: Whether it is the computation's result.
    """

    name: str
    opcode: str
    shapes: tuple[Shape, ...]
    operands: tuple[str, ...]
    attributes: str
    root: bool

    @property
    def bytes(self) -> int:
        """Bytes of the result in main memory."""
        return sum(shape.bytes for shape in self.shapes if shape.space == 0)

    @cached_property
    def called(self) -> Mapping[str, tuple[str, ...]]:
        """The computations that it runs, by role such as `body`."""
        return dict(_called_computations(self.attributes))

    def attribute(self, name: str) -> str:
        """The value of `name=value` or of `name={...}` without the braces; "" if there is none."""
        match = re.search(rf"\b{name}=(?:\{{([^{{}}]*)\}}|([^\s,]+))", self.attributes)
        if match is None:
            return ""
        return match[2] if match[1] is None else match[1]


def _called_computations(attributes: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    for match in _CALLED.finditer(attributes):
        rest = attributes[match.end() :]
        # `branch_computations={%a, %b}` has several, `body=%a` one.
        several = rest.startswith("{")
        yield (
            match[1],
            tuple(_NAME.findall(rest[: rest.index("}")] if several else rest.partition(",")[0])),
        )


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
        return next(
            x for x in self.instructions if x.opcode == "parameter" and x.operands == (str(number),)
        )

    def users(self, name: str) -> list[Instruction]:
        return [x for x in self.instructions if name in x.operands]


class Program:
    """Computations of a program by name, and its entry's name."""

    def __init__(self, text: str, experts: int = 0) -> None:
        """Reads `jax.stages.Compiled.as_text()`.

        Args:
          text: the text.
          experts: number of experts in a layer of the whole model; 0: none.

        Raises:
          ValueError: there is no entry computation.
        """
        self.experts = experts
        self.computations: dict[str, Computation] = {}
        self.entry = ""
        name = ""
        lines: list[Instruction] = []
        for line in text.splitlines():
            header = _HEADER.match(line)
            if header:
                name = header[2]
                lines = []
                if header[1]:
                    self.entry = name
            elif line == "}":  # "}}, ..." ends an attribute of several lines
                self.computations[name] = Computation(lines)
            # Lines before the first header describe the module.
            elif " = " in line and name:
                lines.append(_parse_instruction(line.strip()))
        if not self.entry:
            raise ValueError("no ENTRY in the program's text")

    def inside(self, fusion: Instruction) -> Computation:
        """The computation of a fusion."""
        return self.computations[fusion.called["calls"][0]]

    def constant_trips(self, loop: Instruction) -> int | None:
        """Number of turns of a `while`, if it is constant, else None.

        XLA notes the number, or the condition counts from 0 to it.
        """
        note = _TRIPS.search(loop.attributes)
        if note:
            return int(note[1])
        # The form of a scan: while (i < constant). A limit that is an argument is not known here.
        condition = self.computations[loop.called["condition"][0]]
        if condition.root.opcode != "compare" or condition.root.attribute("direction") != "LT":
            return None
        limit = condition.by_name[condition.root.operands[1]]
        return int(limit.operands[0]) if limit.opcode == "constant" else None


def _parse_instruction(line: str) -> Instruction:
    head, _, rest = line.partition(" = ")
    end = _end_of_type(rest)
    opcode, _, rest_after = rest[end:].strip().partition("(")
    close = _closing_index(rest_after)
    inside = rest_after[:close]
    operands = tuple(_NAME.findall(inside))
    if opcode in ("parameter", "constant"):
        # Their parentheses hold a number or a value, and no names.
        operands = (inside,)
    return Instruction(
        name=head.partition("%")[2],
        opcode=opcode,
        shapes=tuple(_parse_shapes(rest[:end])),
        operands=operands,
        attributes=rest_after[close + 1 :],
        root=head.startswith("ROOT"),
    )


def _end_of_type(text: str) -> int:
    """Index where the type ends: behind a tuple's closing parenthesis, or at the first space."""
    if text.startswith("("):
        return _closing_index(text[1:]) + 2
    return text.index(" ")


def _closing_index(text: str) -> int:
    """Index of the parenthesis that closes one opened before `text`."""
    depth = 1
    for index, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return index
    raise ValueError(f"no closing parenthesis in {text[:80]!r}")


def _parse_shapes(text: str) -> Iterator[Shape]:
    for dtype, dims, layout in _SHAPE.findall(text):
        # S(1) and above are memories on the chip or of the host.
        space = re.search(r"S\((\d+)\)", layout)
        yield Shape(
            dtype,
            tuple(int(x.strip("<=")) for x in dims.split(",") if x),
            int(space[1]) if space else 0,
        )
