"""Estimates of every algorithm of the catalogue for the same steps."""

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from gigpo_jax.config.command_line import parse_value
from gigpo_jax.config.keys import KEYS
from gigpo_jax.core.errors import InputError
from gigpo_jax.learner.step_columns import step_columns
from gigpo_jax.rl.advantages import CHOICES, Advantages, present_columns
from gigpo_jax.rl.algorithms import (
    ALGORITHMS,
    BASE,
    PRESETS,
    Algorithm,
    find_algorithm,
    make_advantages,
)
from gigpo_jax.rl.types import COLUMNS_OF_STEPS, StepColumns
from gigpo_jax.trajectory import Step

# Columns that all rollouts give beside the columns of every algorithm.
GIVEN = {*COLUMNS_OF_STEPS} - {"forked", "summary"}
STEP_PART = "gigpo (step part)"
Source = tuple[str, str, str]  # algorithm, preset, anchor option
# Numbers of the config's section `rl` that every algorithm reads.
_RULES = {name: KEYS[f"rl.{name}"] for name in ("gamma", "step_weight")}


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
        """Preset of the first source that is no variant, or else of the first source."""
        # A variant may turn one preset into another: the algorithm itself says which one it is.
        algorithms = [source for source in self.sources if "=" not in source[0]]
        return (algorithms or self.sources)[0][1]


@dataclass(frozen=True)
class Variant:
    """An algorithm with some settings of its own.

    Attributes:
      algorithm: Its name, as for `find_algorithm`.
      settings: Settings of the algorithm, of GiGPO and of the config's section `rl`.
    """

    algorithm: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Its name in tables."""
        return " ".join(
            [self.algorithm, *itertools.starmap(_format_setting, self.settings.items())]
        )

    @property
    def definition(self) -> Algorithm:
        """The algorithm, a wrapper together with its base."""
        common = {*_RULES, *CHOICES}
        own_settings = {key: value for key, value in self.settings.items() if key not in common}
        return find_algorithm(self.algorithm, own_settings)

    def make_advantages(self, rl: ConfigDict, preset: str) -> Callable[[StepColumns], Advantages]:
        """Its function; the rest is from the section `rl`."""
        common = {"gamma": rl.gamma, "step_weight": rl.step_weight, "normalize": rl.normalize}
        return make_advantages(self.algorithm, preset, **common | dict(self.settings))


def _format_setting(key: str, value: Any) -> str:
    return f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}"


def parse_variants(texts: Sequence[str], rl: ConfigDict) -> dict[str, Variant]:
    """Variants from texts such as "gamma=1" (of GiGPO) or "graph_values:lam=0.5:shrinkage=1".

    Args:
      texts: The variants.
      rl: Section `rl` of the config.

    Returns:
      Name -> variant.

    Raises:
      InputError: no such algorithm or setting, or not with that value.
    """
    variants = {}
    for text in texts:
        try:
            variant = _parse_variant(text)
            # It checks settings that are right alone and wrong together.
            variant.make_advantages(rl, rl.preset)
        except InputError as error:
            raise InputError(str(error), key="--variants", value=repr(text)) from error
        variants[variant.name] = variant
    return variants


def _parse_variant(text: str) -> Variant:
    """Checks each setting by itself."""
    name, *words = text.split(":")
    if "=" in name:
        words.insert(0, name)
        name = "gigpo"
    elif words and "=" not in words[0] and name not in ALGORITHMS:  # module:NAME
        name = f"{name}:{words.pop(0)}"
    texts: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise InputError(f"{word!r} is not KEY=VALUE, such as gamma=1")
        if key in texts:
            raise InputError("is there twice", key=key, value=repr(value))
        texts[key] = value
    # A wrapper has the settings of its base, too.
    definition = find_algorithm(name, {BASE: texts[BASE]} if BASE in texts else {})
    if definition.token_advantages is not None and not definition.is_graded:
        raise InputError("its advantages are of tokens, and steps are graded", key=name)
    if not texts and name in ALGORITHMS:
        raise InputError("is graded with its defaults anyway", key=name, fix="add a setting")
    return Variant(
        name, {key: _parse_setting(definition, key, value) for key, value in texts.items()}
    )


def _parse_setting(definition: Algorithm, key: str, text: str) -> Any:
    """The value of a setting, checked by its rule."""
    if key in CHOICES:
        choices = {str(choice): choice for choice in CHOICES[key]}
        if text not in choices:
            raise InputError(f"must be one of {', '.join(choices)}", key=key, value=repr(text))
        value: Any = choices[text]
    elif key in definition.settings or key in _RULES:
        path = f"rl.settings.{key}" if key in definition.settings else f"rl.{key}"
        rule = definition.settings[key] if key in definition.settings else _RULES[key]
        value = parse_value(path, text, type(rule.default))
        complaint = rule.complaint(value)
        if complaint:
            raise InputError(complaint, key=f"config.{path}", value=repr(value))
    else:
        names = ", ".join([*definition.settings, *_RULES, *CHOICES])
        raise InputError("no such setting", key=key, value=repr(text), fix=f"choose from {names}")
    if value != definition.fixed.get(key, value):
        raise InputError(f"the algorithm has {definition.fixed[key]}", key=key, value=repr(value))
    return value


def own_variant(rl: ConfigDict) -> dict[str, Variant]:
    """The run's algorithm as configured; empty if the catalogue has it with the same settings."""
    definition = find_algorithm(rl.algorithm, rl.settings)
    changes = {
        key: value
        for key, value in rl.settings.items()
        if value != definition.settings[key].default
    }
    if rl.algorithm in ALGORITHMS and not changes:
        return {}
    variant = Variant(rl.algorithm, changes)
    return {variant.name: variant}


def estimate_steps(
    anchored: Mapping[str, Sequence[Step]],
    rl: ConfigDict,
    variants: Mapping[str, Variant],
    computed: Mapping[str, np.ndarray] = MappingProxyType({}),
) -> list[Estimate]:
    """Computes the estimates of all algorithms, presets and variants.

    GiGPO's step part alone is one of them. Algorithms have their default settings, wrappers also
    GiGPO as their base. An algorithm or variant that needs a missing column is skipped, and where
    there are forks, one that does not take them.

    Args:
      anchored: anchor option -> all steps of the rollouts, the same ones but for their anchors.
      rl: Section `rl` of the config.
      variants: Algorithms with other settings, as from `parse_variants`.
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
    if any(step.episode.is_forked for step in steps):
        given.add("forked")
    if any(step.turn.is_text for step in steps):
        given.add("summary")
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


def missing_columns(
    computed: Collection[str],
    rl: ConfigDict,
    variants: Mapping[str, Variant] = MappingProxyType({}),
) -> dict[str, list[str]]:
    """What `estimate_steps` skips, with the missing columns."""
    run = find_algorithm(rl.algorithm, rl.settings)
    present = GIVEN | {*computed}
    missing = {}
    for name, variant in _with_defaults(variants).items():
        candidate = variant.definition
        available = present
        if candidate.critic_values and _value_kind(candidate) != _value_kind(run):
            available = present - {"value", "token_value"}
        absent = sorted({*candidate.columns} - available)
        if not candidate.is_graded:
            absent.append(f"other {candidate.changes.removeprefix('the ')}")
        if "forked" in computed and not candidate.takes_forks:
            absent.append("episodes without forks")
        if absent:
            missing[name] = absent
    return missing


def _with_defaults(variants: Mapping[str, Variant]) -> dict[str, Variant]:
    """The variants behind all algorithms with their default settings."""
    return {name: Variant(name) for name in ALGORITHMS} | dict(variants)


def _value_kind(algorithm: Algorithm) -> str:
    """What the values of an algorithm's critic estimate, which the names of columns do not tell."""
    if "executable" in algorithm.columns:
        return "progress"
    return "returns" if algorithm.critic_values else "returns, by a critic on the host"


def _estimates_of_preset(
    columns: StepColumns, preset: str, rl: ConfigDict, variants: Mapping[str, Variant]
) -> dict[str, np.ndarray]:
    skipped = missing_columns(present_columns(columns), rl, variants)
    graded = {
        name: variant for name, variant in _with_defaults(variants).items() if name not in skipped
    }
    # A wrapper's default base is graded under its own name.
    for name in [*graded]:
        if name in ALGORITHMS and BASE in ALGORITHMS[name].settings:
            graded[f"{name} over gigpo"] = Variant(name, {BASE: "gigpo"})
    results = {
        name: variant.make_advantages(rl, preset)(columns) for name, variant in graded.items()
    }
    totals = {name: np.asarray(result.total) for name, result in results.items()}
    # GiGPO always runs: it needs no optional column.
    totals[STEP_PART] = np.asarray(results["gigpo"].step)
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
