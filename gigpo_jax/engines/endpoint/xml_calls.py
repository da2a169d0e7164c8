"""Tool calls in the form of Qwen3-Coder.

    <tool_call>
    <function=NAME>
    <parameter=KEY>
    VALUE
    </parameter>
    </function>
    </tool_call>

Values are text. The JSON schema of the tool gives their types.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

FUNCTION = "<function="
_FUNCTION_START = re.compile(r"<function=([^>\s]+)>\s*")
_FUNCTION_END = re.compile(r"</function>")
# A value may contain the end tag: only the one before another tag ends it.
_PARAMETER = re.compile(
    r"<parameter=([^>\n]+)>(.*?)</parameter>\s*(?=<parameter=|</function>)", re.DOTALL
)


def read_function(text: str, schemas: Mapping[str, Any]) -> tuple[str, dict[str, Any], str]:
    """Reads the function at the beginning of a text.

    Args:
      text: Text that begins with `<function=`.
      schemas: JSON schema of the arguments of each tool.

    Returns:
      Name, arguments, and the text behind the function.

    Raises:
      ValueError: The text is no whole function.
    """
    start = _FUNCTION_START.match(text)
    if start is None:
        raise ValueError("no function")
    name = start[1]
    schema = schemas.get(name)
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    if not isinstance(properties, Mapping):
        properties = {}
    arguments = {}
    position = start.end()
    while parameter := _PARAMETER.match(text, position):
        key = parameter[1]
        arguments[key] = _read_value(parameter[2], properties.get(key))
        position = parameter.end()
    end = _FUNCTION_END.match(text, position)
    if end is None:
        raise ValueError("a function without its end")
    return name, arguments, text[end.end() :]


def _read_value(text: str, schema: Any) -> Any:
    """Returns a value of the types that its schema names, or the text if it is of none of them."""
    # The form puts a value on lines of its own; further white space is the value's.
    text = text.removeprefix("\n").removesuffix("\n")
    types = _schema_types(schema)
    if types & {"boolean"} and text.strip().lower() in ("true", "false"):
        return text.strip().lower() == "true"  # templates write Python's True
    if types & {"null"} and text.strip().lower() in ("null", "none"):
        return None
    if not types - {"string"}:
        return text
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if _json_types(value) & types else text


def _schema_types(schema: Any) -> set[str]:
    """Returns the names of the types that a JSON schema allows."""
    if not isinstance(schema, Mapping):
        return set()
    names = schema.get("type")
    types = {name for name in (names if isinstance(names, list) else [names]) if name}
    for key in ("anyOf", "oneOf"):
        choices = schema.get(key)
        for choice in choices if isinstance(choices, list) else ():
            types |= _schema_types(choice)
    if not types and isinstance(schema.get("enum"), list):
        for value in schema["enum"]:
            types |= _json_types(value)
    return {name for name in types if isinstance(name, str)}


def _json_types(value: Any) -> set[str]:
    """Returns the names of the types of JSON schemas that a value has."""
    if value is None:
        return {"null"}
    if isinstance(value, bool):
        return {"boolean"}
    if isinstance(value, int):
        return {"integer", "number"}
    if isinstance(value, float):
        return {"number", "integer"} if value.is_integer() else {"number"}
    if isinstance(value, str):
        return {"string"}
    return {"array"} if isinstance(value, list) else {"object"}
