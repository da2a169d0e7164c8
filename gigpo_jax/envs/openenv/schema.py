"""What an OpenEnv server declares: actions and observations as JSON schemas."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gigpo_jax.core.errors import InputError
from gigpo_jax.envs.tool_calls import ActionError, is_sendable

MAX_CHOICES = 1000
_MAX_DIGITS = 18  # of a number; JSON of other languages has 64 bits
_MAX_REFERENCES = 8  # one after the other
_HIDDEN_FIELDS = ("metadata", "done", "reward")
_NAME_KEY = "config.env.name"


@dataclass(frozen=True)
class ActionForm:
    """How an action is written.

    Attributes:
      field: Field of the server's action that the policy fills; "" if it writes the whole action as
        a JSON object.
      kind: JSON type of the field; "" for any JSON value.
      choices: Names and values of discrete actions; empty if there is no such list.
      fields: Names and types of all fields, for the words of the task.
    """

    field: str
    kind: str
    choices: tuple[tuple[str, Any], ...]
    fields: tuple[tuple[str, str], ...]

    def describe(self) -> str:
        """The form in words; "" where the action is a text or in a list."""
        if self.field and (self.choices or self.kind == "string"):
            return ""
        if self.field:
            return f"An action is a value of the type {self.kind or 'JSON'}."
        names = ", ".join(f'"{name}": {kind or "JSON"}' for name, kind in self.fields)
        return f"An action is a JSON object: {{{names}}}."

    def read(self, action: str) -> dict[str, Any]:
        """Reads an action for the server; raises ActionError."""
        if not self.field:
            content = _parse_json_action(action)
            if not isinstance(content, dict):
                raise ActionError("That is no JSON object.")
            return content
        return {self.field: self._read_value(action)}

    def name(self, value: Any) -> str:
        """The name of a possible value."""
        for name, choice in self.choices:
            if choice == value:
                return name
        return value if isinstance(value, str) else json.dumps(value)

    def _read_value(self, action: str) -> Any:
        if self.choices:
            for name, value in self.choices:
                if name.lower() == action.strip().lower():
                    return value
            raise ActionError("There is no such action.")
        if self.kind == "string":
            # JSON of other languages has no lone surrogates.
            return action.encode("utf-8", "replace").decode("utf-8")
        value = _parse_json_action(action)
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if self.kind == "number" and not is_number:
            raise ActionError("That is no number.")
        if self.kind == "integer" and not (is_number and isinstance(value, int)):
            raise ActionError("That is no whole number.")
        return value


def _parse_json_action(action: str) -> Any:
    try:
        content = json.loads(action)
    except (ValueError, RecursionError) as err:
        raise ActionError("That is not JSON.") from err
    is_infinite = isinstance(content, float) and not math.isfinite(content)
    is_long = isinstance(content, int) and len(str(content)) > _MAX_DIGITS
    if is_infinite or is_long:
        raise ActionError("That number is too large.")
    if not is_sendable(content):
        raise ActionError("That is nested too deeply, or no Unicode text.")
    return content


def read_action_schema(schema: Any, field: str, names: Sequence[str] | None) -> ActionForm:
    """Finds the form of a server's actions.

    Args:
      schema: JSON schema of actions.
      field: Field that the policy fills; "": the only one, or the only one that is required.
      names: Names of discrete actions, in the order of the schema; None: their values.

    Raises:
      InputError: The schema cannot be used, or it has no such field or number of names.
    """
    properties = schema.get("properties", {}) if isinstance(schema, dict) else None
    if not isinstance(properties, dict):
        raise InputError("its schema of actions names no fields", key=_NAME_KEY)
    resolved = {
        name: _resolve(schema, declared)
        for name, declared in properties.items()
        if name not in _HIDDEN_FIELDS
    }
    fields = tuple((name, _read_kind(declared)) for name, declared in resolved.items())
    if field and field not in resolved:
        raise InputError(
            f"actions have the fields {', '.join(resolved) or 'none'}",
            key="config.env.options.field",
            value=repr(field),
        )
    required = schema.get("required")
    required_fields = [name for name in resolved if isinstance(required, list) and name in required]
    candidates = required_fields or list(resolved)
    if not field and len(candidates) == 1:
        field = candidates[0]
    values = _list_choices(resolved[field]) if field else []
    if names is not None and (len(names) != len(values) or len(set(names)) != len(names)):
        raise InputError(
            f"the server's schema has {len(values)} discrete actions",
            key="config.env.options.actions",
            value=str(tuple(names)),
            fix="give each a name of its own, in the order of the schema",
        )
    labels = names or [value if isinstance(value, str) else json.dumps(value) for value in values]
    kind = _read_kind(resolved[field]) if field else ""
    return ActionForm(field, kind, tuple(zip(labels, values)), fields)


def find_text_field(schema: Any) -> str:
    """The only field of observations that is a text; "" if there is not exactly one."""
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(properties, dict):
        return ""
    texts = [
        name
        for name, declared in properties.items()
        if name not in _HIDDEN_FIELDS and _read_kind(_resolve(schema, declared)) == "string"
    ]
    return texts[0] if len(texts) == 1 else ""


def show_fields(observation: dict[str, Any]) -> str:
    """All fields of an observation, one a line."""
    lines = []
    for name, value in observation.items():
        if name not in _HIDDEN_FIELDS:
            text = value if isinstance(value, str) else json.dumps(value)
            lines.append(f"{name}: {text}")
    return "\n".join(lines)


def _resolve(schema: dict[str, Any], declared: Any) -> dict[str, Any]:
    """Follows references and unwraps optional fields; {} for a malformed declaration."""
    # With a bound: a schema may refer to itself.
    for _ in range(_MAX_REFERENCES):
        if not isinstance(declared, dict):
            return {}
        variants = declared.get("anyOf", declared.get("allOf"))
        if isinstance(variants, list):
            non_null = [variant for variant in variants if variant != {"type": "null"}]
            if len(non_null) != 1:
                return {}
            declared = non_null[0]
        elif isinstance(declared.get("$ref"), str):
            definitions = schema.get("$defs")
            name = declared["$ref"].rpartition("/")[2]
            declared = definitions.get(name) if isinstance(definitions, dict) else None
        else:
            return declared
    return {}


def _read_kind(declared: dict[str, Any]) -> str:
    kind = declared.get("type")
    return kind if kind in ("string", "integer", "number", "boolean", "array", "object") else ""


def _list_choices(declared: dict[str, Any]) -> list[Any]:
    """The values of a discrete field; none for any other field."""
    values = declared.get("enum")
    if isinstance(values, list) and 0 < len(values) <= MAX_CHOICES:
        return values
    if declared.get("type") == "boolean":
        return [False, True]
    low = declared.get("minimum", _add(declared.get("exclusiveMinimum"), 1))
    high = declared.get("maximum", _add(declared.get("exclusiveMaximum"), -1))
    if declared.get("type") != "integer" or not isinstance(low, int) or not isinstance(high, int):
        return []
    return list(range(low, high + 1)) if high - low < MAX_CHOICES else []


def _add(bound: Any, change: int) -> int | None:
    return bound + change if isinstance(bound, int) else None
