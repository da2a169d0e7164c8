"""The KL penalty of rewards, for `rl.kl_in="reward"`."""

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from gigpo_jax.devices.exchange import all_hosts
from gigpo_jax.learner.scored_steps import ScoredSteps
from gigpo_jax.trajectory import Step


def subtract_penalties(steps: Sequence[Step], penalties: Sequence[float]) -> list[Step]:
    """The same steps, with a penalty subtracted from each reward."""
    return [
        # Copies: saved rollouts keep the rewards of the environment.
        replace(step, turn=replace(step.turn, reward=step.turn.reward - penalty))
        for step, penalty in zip(steps, penalties, strict=True)
    ]


def subtract_kl(
    config: ConfigDict, scored: ScoredSteps, reference: Any
) -> tuple[ScoredSteps, dict[str, float]]:
    """Subtracts `rl.kl_coef` times each step's KL estimate from its reward.

    The estimate ("k1") is the sum over the response of old log-probability - reference
    log-probability. All hosts call this together.

    Args:
      config: config as from `config.resolve`.
      scored: steps of this host.
      reference: trained parameters of the reference policy.

    Returns:
      The steps with lower rewards, and metrics.
    """
    _, frozen = scored.policy
    reference_logprobs = scored.score(reference, frozen, scored.samples).logprob
    # The old policy is that of the ratio, in both cases.
    if config.rl.old_logprobs == "recompute":
        old_logprobs = scored.token_logprobs.logprob
    else:
        old_logprobs = [step.turn.logprobs for step in scored.steps]
    penalties = []
    for old, new in zip(old_logprobs, reference_logprobs, strict=True):
        # k1 has a sign: a response that the reference finds likelier raises the reward.
        penalties.append(config.rl.kl_coef * float(np.sum(old - new)))
    # Sums, not means: hosts have different numbers of steps.
    local_sums = np.array([sum(penalties), len(penalties)], np.float32)
    total, count = all_hosts(local_sums).sum(0)
    metrics = {"credit/kl_penalty": float(total) / max(float(count), 1.0)}
    # A shallow copy has the cached scores too: rewards do not change what the policy said.
    changed = copy.copy(scored)
    changed.steps = subtract_penalties(scored.steps, penalties)
    return changed, metrics
