"""Chat templates (jinja2): a template comes with a model and is not trusted, so its rights and its work are limited.

It runs in jinja2's immutable sandbox. Loop turns and calls are counted, and products are bounded: a template that would
run without end raises an error instead.
"""

import functools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import jinja2
import jinja2.compiler
import jinja2.nodes
import jinja2.sandbox
from jinja2.runtime import Context

MAX_STEPS = 100_000  # loop turns and calls of one rendering
MAX_CHARACTERS = 10_000_000  # of the text, and bound of a product
_STEPS = " steps"  # no name that a template can write


class _CountingCompiler(jinja2.compiler.CodeGenerator):
    def visit_Template(self, node: jinja2.nodes.Template, frame: Any = None) -> None:
        for loop in node.find_all(jinja2.nodes.For):
            loop.iter = jinja2.nodes.Filter(loop.iter, "counted", [], [], None, None)
        super().visit_Template(node, frame)


class _Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    code_generator_class = _CountingCompiler
    intercepted_binops = frozenset({"*", "**"})

    def call(self, context: Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        _count(context)
        return super().call(context, function, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        sizes = [len(x) if hasattr(x, "__len__") else abs(x) for x in (left, right)]
        if operator == "**" or sizes[0] * sizes[1] > MAX_CHARACTERS:
            raise jinja2.TemplateRuntimeError(f"{operator}: the result may be too large")
        return left * right


class ChatTemplate:
    """A compiled template. Compiling and rendering may raise any exception: what fails is the template's code."""

    def __init__(self, source: str, values: dict[str, Any]) -> None:
        """Compiles the text `source`; `values` are variables beside `messages` and `add_generation_prompt`."""
        environment = _Environment(trim_blocks=True, lstrip_blocks=True)
        environment.filters["tojson"] = functools.partial(json.dumps, ensure_ascii=False)
        environment.filters["counted"] = _counted
        environment.globals["raise_exception"] = _raise_exception
        del environment.globals["lipsum"]  # makes texts of any length
        self._template, self._values = environment.from_string(source), values

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] = ()) -> str:
        """The text of a chat, up to where the response begins; `tools` are definitions of functions."""
        parts, size = [], 0
        values = self._values | ({"tools": list(tools)} if tools else {}) | {_STEPS: iter(range(MAX_STEPS))}
        for part in self._template.generate(values, messages=list(messages), add_generation_prompt=True):
            parts.append(part)
            size += len(part)
            if size > MAX_CHARACTERS:
                raise jinja2.TemplateRuntimeError(f"more than {MAX_CHARACTERS} characters")
        return "".join(parts)


@jinja2.pass_context
def _counted(context: Context, items: Iterable[Any]) -> Iterator[Any]:
    for item in items:
        _count(context)
        yield item


def _count(context: Context) -> None:
    if next(context.parent[_STEPS], None) is None:
        raise jinja2.TemplateRuntimeError(f"more than {MAX_STEPS} loop turns and calls")


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
