"""Metrics of credit for each environment of `env.mix`."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from gigpo_jax.devices.exchange import all_rows
from gigpo_jax.rl.types import StepColumns
from gigpo_jax.trajectory import Step


def credit_by_environment(
    labels: Iterable[str],
    steps: Sequence[Step],
    columns: StepColumns,
    measure: Callable[..., dict[str, float]],
) -> dict[str, float]:
    """Statistics of the steps of all hosts in each environment; their names end with its label.

    `measure` computes them for columns, with a suffix for their names.
    """
    environments = [step.episode.task.environment for step in steps]
    metrics: dict[str, float] = {}
    for label in labels:
        # As int32: rows are exchanged as 32-bit words.
        is_member = all_rows(np.array([name == label for name in environments], np.int32))
        # An environment of the mix may have no finished step in an iteration.
        if is_member.any():
            mask = np.zeros(len(columns.mask), bool)
            mask[: len(is_member)] = is_member != 0
            members = dataclasses.replace(columns, mask=mask)
            metrics |= measure(members, suffix=f"/{label}")
    return metrics
