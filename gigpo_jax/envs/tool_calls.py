"""Tools as actions: the JSON that calls one, and the tools in the words of a task."""

import json
from collections.abc import Container
from dataclasses import dataclass
from typing import Any

FORMAT = (
    'Call a tool with {"tool": "NAME", "arguments": {..}}, or end with {"answer": "TEXT"}. '
    "Both are JSON."
)
MAX_DEPTH = 32  # of nested arguments
_DESCRIPTION_CHARACTERS = 500  # of a tool, in the words of the task
_CUT_MARK = " .. [{count} characters are left out]"


class ActionError(ValueError):
    """An action that is neither a call nor an answer; its text tells the policy the reason."""


@dataclass(frozen=True)
class ToolCall:
    """A call of a tool."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class FinalAnswer:
    """The answer, which ends the episode."""

    text: str


def read_action(action: str, names: Container[str]) -> ToolCall | FinalAnswer:
    """Reads a call or an answer.

    Args:
      action: JSON in the form of `FORMAT`.
      names: Names of the tools.

    Raises:
      ActionError: The action is neither.
    """
    try:
        content = json.loads(action)
    except (ValueError, RecursionError) as err:
        raise ActionError("That is not JSON.") from err
    if not isinstance(content, dict):
        raise ActionError("That is no JSON object.")
    if "tool" not in content and "answer" in content:
        if not isinstance(content["answer"], str):
            raise ActionError("The answer is no JSON string: write it between quotes.")
        return FinalAnswer(content["answer"])
    name = content.get("tool")
    if not isinstance(name, str) or name not in names:
        raise ActionError("There is no such tool.")
    arguments = content.get("arguments", {})
    if not isinstance(arguments, dict):
        raise ActionError("The arguments are no JSON object.")
    if not is_sendable(arguments):
        raise ActionError("The arguments are nested too deeply, or are no Unicode text.")
    return ToolCall(name, arguments)


def is_sendable(value: Any, depth: int = MAX_DEPTH) -> bool:
    """Tests whether a client can send a JSON value.

    The SDK of MCP closes the connection at a lone surrogate, and refuses deep nesting with an
    exception.
    """
    if depth == 0:
        return False
    if isinstance(value, str):
        return not any("\ud800" <= character <= "\udfff" for character in value)
    if isinstance(value, dict):
        items = [*value.keys(), *value.values()]
        return all(is_sendable(item, depth - 1) for item in items)
    if isinstance(value, list):
        return all(is_sendable(item, depth - 1) for item in value)
    return True


def describe_tool(name: str, description: str, schema: dict[str, Any]) -> str:
    """A tool in one line: name, arguments with types, description.

    Args:
      name: Name of the tool.
      description: Purpose of the tool; line breaks become spaces.
      schema: JSON schema of its arguments; a malformed one names fewer of them.
    """
    properties = schema.get("properties")
    arguments = []
    for argument, declared in properties.items() if isinstance(properties, dict) else ():
        kind = declared.get("type") if isinstance(declared, dict) else None
        arguments.append(f"{argument}: {kind}" if isinstance(kind, str) else str(argument))
    line = f"- {name}({', '.join(arguments)}): {' '.join(description.split())}"
    return line[:_DESCRIPTION_CHARACTERS]


def limit_text(text: str, limit: int) -> str:
    """The first `limit` characters of a text, with a mark behind them if there were more."""
    count = len(text) - limit
    return text if count <= 0 else text[:limit] + _CUT_MARK.format(count=count)
