"""Advantages of environment steps, and grades of advantages, on plain arrays.

    import gigpo_credit
    advantage = gigpo_credit.advantages("gigpo", reward=reward, trajectory=trajectory, step=step,
                                        group=group, anchor=anchor)

This distribution has the pure functions of gigpo_jax in the folder `sources`. Importing
`gigpo_credit` makes them importable, unless gigpo_jax itself is installed; then that one is used.
"""

import contextlib
import functools
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

SOURCES = Path(__file__).parent / "sources"

if importlib.util.find_spec("gigpo_jax") is None:
    sys.path.append(str(SOURCES))
    importlib.invalidate_caches()
elif importlib.util.find_spec("gigpo_jax.rl") is None:
    # Only gigpo_worlds is there: both folders are one package.
    importlib.import_module("gigpo_jax").__path__.append(str(SOURCES / "gigpo_jax"))
    importlib.invalidate_caches()

from gigpo_credit.columns import hash_names, make_columns  # noqa: E402
from gigpo_jax.core.errors import InputError  # noqa: E402
from gigpo_jax.core.settings import FRACTION, Setting  # noqa: E402
from gigpo_jax.rl.advantages import CHOICES, Advantages, check_choices  # noqa: E402
from gigpo_jax.rl.algorithm_types import Algorithm  # noqa: E402
from gigpo_jax.rl.algorithms import ALGORITHMS, find_algorithm, make_advantages  # noqa: E402
from gigpo_jax.rl.types import StepColumns, collect_columns  # noqa: E402
from gigpo_jax.tools.credit import grades  # noqa: E402

__all__ = ["ALGORITHMS", "InputError", "advantages", "grade"]

_GAMMA = Setting(0.95, "discount factor of step returns", FRACTION)
_STEP_WEIGHT = Setting(1.0, "weight of the step advantage")


def advantages(
    algorithm: str,
    *,
    reward: Sequence[float] | np.ndarray,
    trajectory: Sequence[Any] | np.ndarray,
    step: Sequence[int] | np.ndarray,
    group: Sequence[Any] | np.ndarray,
    anchor: Sequence[str] | None = None,
    action: Sequence[str] | None = None,
    penalty: Sequence[float] | np.ndarray | None = None,
    preset: str = "paper",
    gamma: float = 0.95,
    step_weight: float = 1.0,
    normalize: str = "mean_std",
    columns: Mapping[str, Any] | None = None,
    **settings: Any,
) -> np.ndarray:
    """Computes the advantages of N steps, which may stand in any order.

    Args:
      algorithm: Key of `ALGORITHMS`, such as "gigpo", "grpo" or "hgpo".
      reward: [N], environment reward of each step.
      trajectory: [N], episode of each step, numbers or names; distinct within a group.
      step: [N], index of the step in its episode, from 0.
      group: [N], task group of each step, numbers or names.
      anchor: [N], anchor state of each step as text; None for algorithms that compare no states.
      action: [N], action of each step as text, for the algorithms that read it.
      penalty: [N], penalty >= 0 for an invalid response. None: 0.
      preset: "paper" or "verl_agent".
      gamma: Discount factor of step returns.
      step_weight: Weight of the step advantage, unless the algorithm fixes it.
      normalize: "mean_std" or "mean", unless the algorithm fixes it.
      columns: Further columns by the names of `StepColumns`, such as `entropy`. Those of hashes,
        such as `past`, are texts too; None in `next_anchor`: the episode ends.
      **settings: Settings of the algorithm, and switches that win over the preset.

    Returns:
      [N] f32. Where an algorithm has advantages of tokens, their means.

    Raises:
      InputError: A name or a value that cannot be used, a column that is missing, two rows of one
        step, an algorithm whose effect is not in advantages of steps, or one that compares states
        where no anchor is given.
    """
    gamma = _check_number("gamma", gamma, _GAMMA)
    step_weight = _check_number("step_weight", step_weight, _STEP_WEIGHT)
    switches = {key: value for key, value in settings.items() if key in CHOICES}
    check_choices(**{"normalize": normalize, **switches})
    own_settings = {key: value for key, value in settings.items() if key not in CHOICES}
    known = _find_known(algorithm, own_settings)
    arguments = {
        "reward": reward,
        "penalty": penalty,
        "trajectory": trajectory,
        "step": step,
        "group": group,
        "anchor": anchor,
        "action": action,
    }
    given = make_columns(arguments, columns or {})
    rows = len(given["reward"])
    has_anchors = "anchor" in given
    values = {key: setting.default for key, setting in known.settings.items()} | own_settings
    _fill_columns(given, algorithm, known, values)
    with _argument_names():
        function = _compile(
            algorithm, preset, gamma, step_weight, normalize, tuple(sorted(settings.items()))
        )
    # Few lengths, so that few shapes compile; padding is masked.
    size = max(256, 1 << (rows - 1).bit_length()) if rows else 0
    padded = {name: _pad(column, size) for name, column in given.items()}
    mask = np.arange(size) < rows
    total = np.asarray(function(collect_columns(**padded, mask=mask)).total)[:rows]
    if not has_anchors:
        # The same program once more: what does not compare states gives the same numbers.
        padded["anchor"] = np.zeros_like(padded["anchor"])
        other = np.asarray(function(collect_columns(**padded, mask=mask)).total)[:rows]
        if not np.array_equal(total, other):
            raise InputError(
                f"{algorithm} compares steps of equal states, and no states are given",
                key="anchor",
                value="None",
                fix="give the state of each step as text, or step_weight=0 or algorithm='grpo'",
            )
    return total


def grade(
    estimate: Sequence[float] | np.ndarray,
    *,
    advantage: Sequence[float] | np.ndarray,
    error: Sequence[float] | np.ndarray,
    group: Sequence[Any] | np.ndarray,
    baseline: Sequence[float] | np.ndarray | None = None,
    seed: int = 0,
) -> dict[str, tuple[float, float, float]]:
    """Grades estimated advantages against measured ones.

    Args:
      estimate: [N], estimated advantages.
      advantage: [N], measured advantages, such as differences of mean returns of continuations.
      error: [N], their standard errors.
      group: [N], task group of each step; intervals are over groups.
      baseline: [N], a second estimate to compare with.
      seed: Seed of the resamples.

    Returns:
      Name -> value, lower and upper bound of the 95% interval. `corrected` is the correlation with
      the true advantage, `noise` the error in units of the measurement's, `sign` the share of right
      signs; `difference` to the baseline.
    """
    measured = grades.Measured(
        np.asarray(advantage, np.float64), np.asarray(error, np.float64), np.asarray(group)
    )
    other = None if baseline is None else np.asarray(baseline)
    return grades.grade(np.asarray(estimate), measured, seed, other)


@contextlib.contextmanager
def _argument_names() -> Iterator[None]:
    """Names errors by the arguments of `advantages`, which has no config."""
    try:
        yield
    except InputError as error:
        key = error.key.removeprefix("config.").removeprefix("rl.").removeprefix("settings.")
        raise error.with_key(key) from error.__cause__


# Bounded, because each entry keeps its programs.
@functools.lru_cache(maxsize=64)
def _compile(
    algorithm: str,
    preset: str,
    gamma: float,
    step_weight: float,
    normalize: str,
    settings: tuple[tuple[str, Any], ...],
) -> Callable[[StepColumns], Advantages]:
    """The jitted advantage function of an algorithm and its settings."""
    numbers = {"gamma": gamma, "step_weight": step_weight}
    return jax.jit(
        make_advantages(algorithm, preset, normalize=normalize, **numbers, **dict(settings))
    )


def _check_number(key: str, value: Any, setting: Setting) -> float:
    """A number of any package as a float."""
    fix = f"the default is {setting.default}"
    try:
        number = float(value)
    except (TypeError, ValueError) as err:
        raise InputError("must be a number", key=key, value=repr(value), fix=fix) from err
    complaint = setting.complaint(number)
    if complaint:
        raise InputError(complaint, key=key, value=repr(value), fix=fix)
    return number


def _find_known(name: str, settings: Mapping[str, Any]) -> Algorithm:
    """An algorithm whose effect is in advantages of steps; raises InputError for another one."""
    with _argument_names():
        algorithm = find_algorithm(name, settings)
    if algorithm.changes:
        raise InputError(
            f"changes {algorithm.changes}, which columns of steps cannot tell",
            key="algorithm",
            value=name,
            fix="train it with gigpo_jax, or choose another one",
        )
    return algorithm


def _fill_columns(
    given: dict[str, np.ndarray], name: str, algorithm: Algorithm, values: Mapping[str, Any]
) -> None:
    """Adds columns that follow from others; raises InputError for one that is missing."""
    rows = len(given["reward"])
    given.setdefault("penalty", np.zeros(rows, np.float32))
    if "anchor" not in given:
        given["anchor"] = hash_names(range(rows), {})
    if "next_anchor" in algorithm.columns and "next_anchor" not in given:
        given["next_anchor"] = _next_rows(given)
    if "truncated" in algorithm.columns and values.get("truncation") == "end":
        # The column is not read then.
        given.setdefault("truncated", np.zeros(rows, bool))
    for column in algorithm.columns:
        if column not in given:
            raise InputError(f"{name} needs it", key=column, value="None", fix="give the column")


def _next_rows(given: Mapping[str, np.ndarray]) -> np.ndarray:
    """The anchor of each step's next step, [N, 2] u32; zeros at a last step."""
    keys = list(
        zip(*(given[name].tolist() for name in ("group", "trajectory", "step")), strict=True)
    )
    rows = {key: row for row, key in enumerate(keys)}
    following = [rows.get((group, trajectory, step + 1), -1) for group, trajectory, step in keys]
    anchors = np.concatenate([given["anchor"], np.zeros((1, 2), np.uint32)])
    return anchors[following]


def _pad(column: np.ndarray, size: int) -> np.ndarray:
    padded = np.zeros((size, *column.shape[1:]), column.dtype)
    padded[: len(column)] = column
    return padded
