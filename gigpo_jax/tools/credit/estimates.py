"""Estimates of every algorithm of the catalogue for the same steps."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from gigpo_jax.core.errors import InputError
from gigpo_jax.learner.step_columns import step_columns
from gigpo_jax.rl.advantages import CHOICES, present_columns
from gigpo_jax.rl.algorithms import (
    ALGORITHMS,
    BASE,
    FROZEN_TEACHER,
    PRESETS,
    Algorithm,
    find_algorithm,
    make_advantages,
)
from gigpo_jax.rl.types import OPTIONAL_COLUMNS, StepColumns
from gigpo_jax.trajectory import Step

# Columns that rollouts give beside those of every algorithm, and those that only the loss needs.
GIVEN = {
    "action",
    "next_anchor",
    "observation",
    "past",
    "won",
    "truncated",
    "executable",
    "task_type",
    "history",
    "action_mask",
    "clip_scale",
    "teacher",
}
STEP_PART = "gigpo (step part)"
Source = tuple[str, str, str]  # algorithm, preset, anchor option
_NUMBERS = ("gamma", "step_weight")


@dataclass(frozen=True)
class Estimate:
    """An estimate of the advantage of every step.

    Attributes:
      names: Algorithms that give exactly this estimate.
      labels: Names, with the preset behind a colon where the presets differ.
      anchor: Anchor option; "any" if all options give it.
      sources: All combinations of algorithm, preset and anchor option that give it.
      values: [N] f32, estimated advantages.
    """

    names: tuple[str, ...]
    labels: tuple[str, ...]
    anchor: str
    sources: tuple[Source, ...]
    values: np.ndarray

    @property
    def preset(self) -> str:
        """Preset of the first source that is no variant.

        Variants are those of GiGPO. If all sources are variants, it is the preset of the first one.
        """
        # A variant may turn one preset into another: the algorithm itself says which one it is.
        algorithms = [source for source in self.sources if "=" not in source[0]]
        return (algorithms or self.sources)[0][1]


def parse_variants(texts: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Settings of GiGPO from texts such as "gamma=1" or "penalty_in=row".

    Raises:
      InputError: no such setting, or not with that value.
    """
    variants: dict[str, dict[str, Any]] = {}
    for text in texts:
        key, _, value = text.partition("=")
        if key in CHOICES:
            choices = {str(choice): choice for choice in CHOICES[key]}
            # The values are compared as text: ddof is a number, the others are words.
            if value not in choices:
                raise InputError(
                    f"must be one of {', '.join(choices)}", key="--variants", value=text
                )
            variants[text] = {key: choices[value]}
        elif key in _NUMBERS:
            try:
                variants[text] = {key: float(value)}
            except ValueError:
                raise InputError("not a number", key="--variants", value=text) from None
        else:
            names = ", ".join([*_NUMBERS, *CHOICES])
            raise InputError(
                "no such setting", key="--variants", value=text, fix=f"choose one of {names}"
            )
    return variants


def estimate_steps(
    anchored: Mapping[str, Sequence[Step]],
    rl: ConfigDict,
    variants: Mapping[str, Mapping[str, Any]],
    computed: Mapping[str, np.ndarray] = MappingProxyType({}),
) -> list[Estimate]:
    """Computes the estimates of all algorithms, presets and GiGPO variants.

    GiGPO's step part alone is one of them. Algorithms have their default settings, wrappers also
    GiGPO as their base. An algorithm that needs a missing column is skipped, and where there are
    forks, one that does not take them.

    Args:
      anchored: anchor option -> all steps of the rollouts, the same ones but for their anchors.
      rl: Section `rl` of the config.
      variants: Settings of GiGPO by name, as from `parse_variants`.
      computed: Optional columns of the steps by name, [N].

    Returns:
      Estimates; equal ones once.
    """
    # Estimates are equal if all bits are: algorithms that reduce to the same formula run the same
    # operations. A tolerance could merge algorithms that differ.
    sources: dict[bytes, list[Source]] = {}
    similarity = rl.similarity if rl.anchor_match == "similar" else None
    for anchor, steps in anchored.items():
        needs = given_columns(steps)
        columns = step_columns(steps, similarity=similarity, needs=needs, computed=computed)
        for preset in PRESETS:
            totals = _estimates_of_preset(columns, preset, rl, variants)
            for name, values in totals.items():
                # Columns are padded to the bucket of their length; the padding is no step.
                key = values[: len(steps)].tobytes()
                sources.setdefault(key, []).append((name, preset, anchor))
    return _merge_equal(sources, len(anchored))


def given_columns(steps: Sequence[Step]) -> set[str]:
    """Columns that these rollouts give."""
    given = set(GIVEN)
    if any(step.forked for step in steps):
        given.add("forked")
    if any(step.turn.is_summary for step in steps):
        given.add("summary")
    strategies = {(step.group, step.strategy) for step in steps}
    if len(strategies) < len({step.trajectory for step in steps}):
        given.add("strategy")
    return given


def join_estimates(saved: Sequence[Mapping[Source, np.ndarray]]) -> list[Estimate]:
    """Joins the estimates that all measurements have; equal ones once.

    Args:
      saved: source -> values, one mapping for each measurement.
    """
    sources: dict[bytes, list[Source]] = {}
    for source in saved[0]:
        if all(source in estimates for estimates in saved):
            values = np.concatenate([estimates[source] for estimates in saved])
            # Files hold six decimals, so equal estimates are equal again after reading.
            sources.setdefault(values.astype(np.float32).tobytes(), []).append(source)
    return _merge_equal(sources, len({anchor for _, _, anchor in saved[0]}))


def _merge_equal(sources: Mapping[bytes, Sequence[Source]], anchors: int) -> list[Estimate]:
    return [
        Estimate(
            names=tuple(dict.fromkeys(name for name, _, _ in equal_sources)),
            labels=_labels(equal_sources),
            anchor=_anchor_label([anchor for _, _, anchor in equal_sources], anchors),
            sources=tuple(equal_sources),
            values=np.frombuffer(values, np.float32),
        )
        for values, equal_sources in sources.items()
    ]


def missing_columns(computed: Collection[str], rl: ConfigDict) -> dict[str, list[str]]:
    """Algorithms that `estimate_steps` skips, with their missing columns."""
    run = find_algorithm(rl.algorithm, rl.settings)
    present = GIVEN | {*computed} | {need for need in run.needs if need not in OPTIONAL_COLUMNS}
    # The term of a frozen teacher is of tokens: the advantages of its steps say nothing.
    present -= {FROZEN_TEACHER}
    missing = {}
    for name in ALGORITHMS:
        # With default settings, unlike the algorithm of the run.
        candidate = find_algorithm(name)
        available = present
        if candidate.needs_critic and _value_kind(candidate) != _value_kind(run):
            available = present - {"value", "token_value"}
        absent = sorted({*candidate.needs} - available)
        if absent:
            missing[name] = absent
    return missing


def _value_kind(algorithm: Algorithm) -> str:
    """What the values of an algorithm's critic estimate.

    The columns of different kinds have the same names.
    """
    if "text_critic" in algorithm.needs:
        return "returns, by a text critic"
    return "progress" if "executable" in algorithm.needs else "returns"


def _estimates_of_preset(
    columns: StepColumns, preset: str, rl: ConfigDict, variants: Mapping[str, Mapping[str, Any]]
) -> dict[str, np.ndarray]:
    settings = {"gamma": rl.gamma, "step_weight": rl.step_weight, "normalize": rl.normalize}
    skipped = missing_columns(present_columns(columns), rl)
    names = [
        name
        for name, algorithm in ALGORITHMS.items()
        if name not in skipped and (columns.forked is None or algorithm.takes_forks)
    ]
    results = {name: make_advantages(name, preset, **settings)(columns) for name in names}
    for name in names:
        # A wrapper's default base is graded under its own name above.
        if BASE in ALGORITHMS[name].settings:
            over_gigpo = make_advantages(name, preset, base="gigpo", **settings)
            results[f"{name} over gigpo"] = over_gigpo(columns)
    totals = {name: np.asarray(result.total) for name, result in results.items()}
    # GiGPO always runs: it needs no optional column.
    totals[STEP_PART] = np.asarray(results["gigpo"].step)
    for text, changes in variants.items():
        variant = make_advantages("gigpo", preset, **settings | dict(changes))
        totals[f"gigpo {text}"] = np.asarray(variant(columns).total)
    return totals


def _labels(sources: Sequence[Source]) -> tuple[str, ...]:
    presets: dict[str, set[str]] = {}
    for name, preset, _ in sources:
        presets.setdefault(name, set()).add(preset)
    labels = []
    for name, its_presets in presets.items():
        # A name without a preset says that all presets agree.
        in_all = len(its_presets) == len(PRESETS)
        labels.append(name if in_all else f"{name}:{min(its_presets)}")
    return tuple(labels)


def _anchor_label(anchors: Sequence[str], options: int) -> str:
    distinct = list(dict.fromkeys(anchors))
    if len(distinct) == options > 1:
        return "any"
    return ", ".join(distinct)
