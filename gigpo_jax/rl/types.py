"""Inputs of `rl`: minibatches of packed rows, and step columns for advantages.

Shapes: M microbatches, B rows, T tokens in a row, C response tokens in a row, N environment steps.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import jax


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class StepBatch:
    """One minibatch: M microbatches of B packed rows; only the first `microbatches` hold rows.

    Attributes:
      tokens: [M, B, T] i32, model input; 0 in padding.
      positions: [M, B, T] i32, from 0 in each segment; [M, B, 3, T] with images.
      segment_ids: [M, B, T] i32, from 1 in each row; 0 is padding. [M, B, 2, T] with trees of
        texts that begin alike, see `models.attention`.
      response_index: [M, B, C] i32, position in the row whose hidden state predicts the response
        token; 0 in padding.
      responses: [M, B, C] i32, number of the token's response in its row, from 1; 0 in padding. A
        segment may have several responses, the turns of a conversation.
      targets: [M, B, C] i32, response tokens.
      behaviour: [M, B, C] f32, nats; log-probabilities of the policy that sampled the response.
      advantage: [M, B, C] f32.
      weight: [M, B, C] f32, 0 in padding.
      microbatches: [] i32, number of microbatches with rows.
      reference: [M, B, C] f32, nats; log-probabilities of the reference policy, or None.
      proximal: [M, B, C] f32, nats; old log-probabilities recomputed by the learner, or None. The
        ratio is against these where they are there, else against `behaviour`.
      action_mask: [M, B, C] bool, tokens of the response's action span, or None.
      clip_scale: [M, B, C] f32, factor of the clips of a ratio other than hoelder_tokens, or None.
      values: `rl.value_targets.ValueTargets`, or None.
      teacher: [M, B, C] f32, nats; log-probabilities of a copy of the policy that has read the
        outcome of the action, or of another model; or None.
      images: `models.vision.vision.Images` of each microbatch, [M, ...], or None.
      routes: [M, B, T, R] integers, experts of each token in place of the routers' choices (R: k
        for each layer with experts), or None.
    """

    # Any: numpy arrays on the host, jax arrays on devices, or shapes when a program
    # is only compiled.
    tokens: Any
    positions: Any
    segment_ids: Any
    response_index: Any
    responses: Any
    targets: Any
    behaviour: Any
    advantage: Any
    weight: Any
    microbatches: Any
    reference: Any = None
    proximal: Any = None
    action_mask: Any = None
    clip_scale: Any = None
    values: Any = None
    teacher: Any = None
    images: Any = None
    routes: Any = None


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class StepColumns:
    """Columns of environment steps for advantages.

    One row is one step; rows stand in any order. The columns from `action` on are None unless the
    run needs them. A text before a step, such as a summary, is a row too: it has reward 0, the
    step's index, an anchor of its own, and stands before the row of the step.

    Attributes:
      reward: [N] f32, environment reward of the step.
      penalty: [N] f32, >= 0, for an invalid or overlong response, in units of the reward.
      trajectory: [N] i32, trajectory of the step; distinct within a group.
      step: [N] i32, index of the step in its trajectory, from 0.
      group: [N] i32, task group of the trajectory.
      anchor: [N, 2] u32, hash of the anchor state; equal hashes in different groups are different
        states.
      mask: [N] bool, False for padding: such a row takes part in nothing.
      action: [N, 2] u32, hash of the action.
      next_anchor: [N, 2] u32, anchor of the trajectory's next row; zeros at its last step.
      past: [N, 2] u32, hash of all actions of the task before the step.
      won: [N] bool, whether the trajectory did the task.
      truncated: [N] bool, last steps of trajectories that used up their steps and were not won.
      forked: [N] bool, steps of trajectories that begin in a state of an earlier one.
      summary: [N] bool, rows of texts that are no actions, such as summaries.
      entropy: [N] f32, nats; mean over the response's tokens under the policy before the updates. 0
        without tokens.
      logprob: [N] f32, nats; likewise the mean log-probability.
      value: [N] f32, critic's estimate of the return at the last prompt token, before the response.
      tokens: [N] i32, response tokens.
      token_value: [N, R] f32, critic's estimate of the return before each response token; 0 after
        the last one.
      extra: columns of single methods by name; the signal that fills one declares what it holds
        (`Column`).
    """

    reward: Any
    penalty: Any
    trajectory: Any
    step: Any
    group: Any
    anchor: Any
    mask: Any
    action: Any = None
    next_anchor: Any = None
    past: Any = None
    won: Any = None
    truncated: Any = None
    forked: Any = None
    summary: Any = None
    entropy: Any = None
    logprob: Any = None
    value: Any = None
    tokens: Any = None
    token_value: Any = None
    extra: Mapping[str, Any] = field(default_factory=dict)


def collect_columns(**columns: Any) -> StepColumns:
    """Makes step columns from columns by name; the columns of single methods go into `extra`."""
    names = {column.name for column in fields(StepColumns)}
    extra = {name: column for name, column in columns.items() if name not in names}
    own = {name: column for name, column in columns.items() if name in names}
    return StepColumns(**own, extra=extra)


# Optional columns that steps give without a signal.
COLUMNS_OF_STEPS = ("action", "next_anchor", "past", "won", "truncated", "forked", "summary")
