"""Step columns from lists and arrays: types, and checks of their values."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from gigpo_jax.core.errors import InputError
from gigpo_jax.core.spelling import nearest_names
from gigpo_jax.rl.advantages import COLUMN_TYPES, HASHES
from gigpo_jax.rl.types import StepColumns

# Kind of a column in `COLUMN_TYPES` -> its type, and the condition that its values must keep to.
_TYPES: dict[Any, tuple[Any, str]] = {
    jnp.floating: (np.float32, "must be finite numbers"),
    jnp.integer: (np.int32, "must be whole numbers"),
    jnp.bool_: (np.bool_, "must be true or false"),
    jnp.uint32: (np.uint32, "must be texts, or two 32-bit numbers each"),
}
# Columns of single methods, and the kind of their values; the others are floats.
_EXTRA_TYPES = dict.fromkeys(
    (
        "answer_logprob",
        "hindsight_logprob",
        "task_deviation",
        "implicit_reward",
        "belief_grade",
        "step_reward",
        "plan_value",
    ),
    jnp.floating,
) | {
    "strategy": jnp.integer,
    "tag": jnp.integer,
    "token_part": jnp.integer,
    "executable": jnp.bool_,
    "plan_start": jnp.bool_,
    "plan_changed": jnp.bool_,
    "task_type": jnp.uint32,
    "belief": jnp.uint32,
}
_KINDS = {**COLUMN_TYPES, **_EXTRA_TYPES}
_TEXTS = (*HASHES, "task_type", "belief")
OPTIONAL_COLUMNS = (
    *(field.name for field in dataclasses.fields(StepColumns) if field.default is None),
    *_EXTRA_TYPES,
)
# Columns with several numbers a row, and how many; 0: any number.
_WIDTHS = dict.fromkeys(_TEXTS, 2) | {
    "belief_grade": 4,
    "plan_value": 3,
    "token_value": 0,
    "token_part": 0,
}
_REQUIRED = ("reward", "trajectory", "step", "group")
_NAMES = ("trajectory", "group")
_NOT_NEGATIVE = ("penalty", "step")


def make_columns(arguments: Mapping[str, Any], further: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Casts columns to their types and checks their values.

    Args:
      arguments: Columns that are arguments of the caller; None: an optional one is not there.
      further: Further optional columns by name; likewise.

    Raises:
      InputError: A name, a value or a length is wrong, or two rows are one step.
    """
    for name in further:
        if name not in OPTIONAL_COLUMNS:
            near = nearest_names(name, OPTIONAL_COLUMNS)
            fix = f"nearest: {', '.join(near)}" if near else f"use {', '.join(OPTIONAL_COLUMNS)}"
            if name in arguments:
                fix = "give it as an argument"
            raise InputError("no such column", key=f"columns.{name}", fix=fix)
    # One numbering for all: equal texts of two columns have equal hashes.
    numbers: dict[Any, int] = {}
    columns = {
        name: _cast(name, column, numbers)
        for name, column in {**arguments, **further}.items()
        if column is not None or name in _REQUIRED
    }
    _check(columns)
    return columns


def hash_names(names: Iterable[Any], numbers: dict[Any, int]) -> np.ndarray:
    """Equal names -> equal rows, [N, 2] u32; None -> zeros.

    Args:
      names: Texts, or other keys.
      numbers: Numbers of earlier names, which gets those of new ones.
    """
    lane = [0 if name is None else numbers.setdefault(name, len(numbers) + 1) for name in names]
    return np.array([lane, lane], np.uint32).T


def _cast(name: str, column: Any, numbers: dict[Any, int]) -> np.ndarray:
    """A column in the type of its field; texts become numbers."""
    # Arrays of all packages have `tolist`.
    values = column.tolist() if hasattr(column, "tolist") else column
    dtype, requirement = _TYPES[_KINDS.get(name, jnp.floating)]
    try:
        if name in _NAMES:
            requirement = "must be numbers or names"
            return hash_names(values, {})[:, 0].astype(np.int32)
        if name in _TEXTS and not any(isinstance(value, list) for value in values):
            # Zeros are no state, which only the end of an episode has.
            if name != "next_anchor" and None in values:
                raise TypeError("None")
            return hash_names(values, numbers)
        array = np.asarray(values)
        # Overflow and NaN are found below.
        with np.errstate(invalid="ignore", over="ignore"):
            cast = array.astype(dtype)
        is_valid = np.isfinite(cast) if dtype is np.float32 else np.equal(cast, array)
    except (TypeError, ValueError) as err:
        raise InputError(requirement, key=name, value=f"{values!r:.60}") from err
    width = _WIDTHS.get(name)
    ranks = 1 if width is None else 2
    if cast.ndim != ranks or (width and cast.shape[1] != width):
        shape = "[N]" if width is None else f"[N, {width or 'R'}]"
        raise InputError(f"must have the shape {shape}", key=f"shape of {name}", value=cast.shape)
    _check_entries(name, array, is_valid, requirement)
    return cast


def _check(columns: Mapping[str, np.ndarray]) -> None:
    """Checks that the rows have all columns and are distinct steps."""
    lengths = {name: len(column) for name, column in columns.items()}
    if len({*lengths.values()}) > 1:
        raise InputError("columns differ in length", key="columns", value=str(lengths))
    for name in _NOT_NEGATIVE:
        if name in columns:
            _check_entries(name, columns[name], columns[name] >= 0, "must be 0 or greater")
    # A row of a summary has the index of the step after it.
    keys = [columns[name].tolist() for name in (*_NAMES, "step", "summary") if name in columns]
    first_rows: dict[tuple[int, ...], int] = {}
    for row, key in enumerate(zip(*keys, strict=True)):
        first_row = first_rows.setdefault(key, row)
        if first_row != row:
            raise InputError(
                f"row {first_row} is of the same group, trajectory and step",
                key=f"step[{row}]",
                value=columns["step"][row],
                fix="number the episodes of a group, and from 0 the steps of each",
            )


def _check_entries(name: str, column: np.ndarray, is_valid: np.ndarray, requirement: str) -> None:
    """Names the first value that is not valid."""
    if not is_valid.all():
        index = np.argwhere(~is_valid)[0].tolist()
        place = ", ".join(map(str, index))
        raise InputError(requirement, key=f"{name}[{place}]", value=column[tuple(index)])
