"""What every algorithm of the catalogue says of the same steps."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from gigpo_jax.batching import step_columns
from gigpo_jax.errors import InputError
from gigpo_jax.rl.advantages import CHOICES, given
from gigpo_jax.rl.algorithms import ALGORITHMS, BASE, PRESETS, algorithm, make_advantages
from gigpo_jax.rl.types import OPTIONAL, StepColumns
from gigpo_jax.trajectory import Step

# What rollouts tell, beside the columns of every algorithm, and what the loss needs but no advantage.
GIVEN = {"action", "next_anchor", "history", "action_mask", "clip_scale", "teacher"}
STEP_PART = "gigpo (step part)"
Source = tuple[str, str, str]  # algorithm, preset, anchor option
_NUMBERS = ("gamma", "step_weight")


@dataclass(frozen=True)
class Estimate:
    """An estimate of the advantage of every step.

    Attributes:
      names: the algorithms that give exactly this estimate.
      labels: these names, with the preset behind a colon where the presets differ.
      anchor: the anchor option; "any" if all give it.
      sources: every combination of algorithm, preset and anchor option that gives it.
      values: [N] f32.
    """

    names: tuple[str, ...]
    labels: tuple[str, ...]
    anchor: str
    sources: tuple[Source, ...]
    values: np.ndarray


def parse_variants(texts: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Settings of GiGPO from texts such as "gamma=1" or "penalty_in=row".

    Raises:
      InputError: no such setting, or not with that value.
    """
    variants: dict[str, dict[str, Any]] = {}
    for text in texts:
        key, _, value = text.partition("=")
        known = [*_NUMBERS, *CHOICES]
        if key not in known:
            raise InputError(f"--variants={text}: no such setting; choose one of {', '.join(known)}")
        options = {str(choice): choice for choice in CHOICES.get(key, ())}
        if options and value not in options:
            raise InputError(f"--variants={text}: must be one of {', '.join(options)}")
        try:
            variants[text] = {key: options[value] if options else float(value)}
        except ValueError:
            raise InputError(f"--variants={text}: not a number") from None
    return variants


def estimates(
    anchored: Mapping[str, Sequence[Step]],
    rl: ConfigDict,
    variants: Mapping[str, Mapping[str, Any]],
    computed: Mapping[str, np.ndarray] = MappingProxyType({}),
) -> list[Estimate]:
    """The estimates of all algorithms and presets, of GiGPO's step part alone, and of variants of GiGPO.

    Algorithms of the catalogue have their default settings, wrappers also GiGPO as their base. One that needs another
    column is left out.

    Args:
      anchored: anchor option -> all steps of the rollouts, the same ones but for their anchors.
      rl: section of the config.
      variants: as from `parse_variants`.
      computed: optional columns of the steps by name, [N].

    Returns:
      Equal estimates once.
    """
    found: dict[bytes, list[Source]] = {}
    for anchor, steps in anchored.items():
        similarity = rl.similarity if rl.anchor_match == "similar" else None
        columns = step_columns(steps, similarity=similarity, needs=GIVEN, computed=computed)
        for preset in PRESETS:
            for name, values in _of_preset(columns, preset, rl, variants).items():
                found.setdefault(values[: len(steps)].tobytes(), []).append((name, preset, anchor))
    return _merged(found, len(anchored))


def restored(saved: Sequence[Mapping[Source, np.ndarray]]) -> list[Estimate]:
    """The estimates that all of several measurements have, their values one after the other; equal ones once.

    Args:
      saved: of each measurement, source -> values.
    """
    found: dict[bytes, list[Source]] = {}
    for source in saved[0]:
        if all(source in other for other in saved):
            values = np.concatenate([other[source] for other in saved]).astype(np.float32)
            found.setdefault(values.tobytes(), []).append(source)
    return _merged(found, len({anchor for _, _, anchor in saved[0]}))


def _merged(found: Mapping[bytes, Sequence[Source]], anchors: int) -> list[Estimate]:
    return [
        Estimate(
            names=tuple(dict.fromkeys(name for name, _, _ in where)),
            labels=_labels(where),
            anchor=_common([anchor for _, _, anchor in where], anchors),
            sources=tuple(where),
            values=np.frombuffer(values, np.float32),
        )
        for values, where in found.items()
    ]


def left_out(computed: Collection[str], rl: ConfigDict) -> dict[str, list[str]]:
    """The algorithms of the catalogue that `estimates` leaves out, and what they need that is not there."""
    run = algorithm(rl.algorithm, rl.settings)
    there = GIVEN | {*computed} | {need for need in run.needs if need not in OPTIONAL}
    missing = {}
    for name in ALGORITHMS:
        other = algorithm(name)
        # The values of a text critic are not those of a critic.
        absent = {"value"} if other.needs_critic and not run.needs_critic else set()
        missing[name] = {*other.needs} - (there - absent)
    return {name: sorted(needs) for name, needs in missing.items() if needs}


def _of_preset(
    columns: StepColumns, preset: str, rl: ConfigDict, variants: Mapping[str, Mapping[str, Any]]
) -> dict[str, np.ndarray]:
    settings = {"gamma": rl.gamma, "step_weight": rl.step_weight, "normalize": rl.normalize}
    names = [name for name in ALGORITHMS if name not in left_out(given(columns), rl)]
    results = {name: make_advantages(name, preset, **settings)(columns) for name in names}
    for name in names:
        if BASE in ALGORITHMS[name].settings:
            results[f"{name} over gigpo"] = make_advantages(name, preset, base="gigpo", **settings)(columns)
    totals = {name: np.asarray(result.total) for name, result in results.items()}
    totals[STEP_PART] = np.asarray(results["gigpo"].step)
    for text, changed in variants.items():
        variant = make_advantages("gigpo", preset, **settings | dict(changed))
        totals[f"gigpo {text}"] = np.asarray(variant(columns).total)
    return totals


def _labels(where: Sequence[Source]) -> tuple[str, ...]:
    presets: dict[str, set[str]] = {}
    for name, preset, _ in where:
        presets.setdefault(name, set()).add(preset)
    return tuple(name if len(its) == len(PRESETS) else f"{name}:{min(its)}" for name, its in presets.items())


def _common(labels: Sequence[str], of: int) -> str:
    different = list(dict.fromkeys(labels))
    return "any" if len(different) == of > 1 else ", ".join(different)
