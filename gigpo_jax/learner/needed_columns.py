"""Optional columns of steps, for algorithms that read them."""

from collections.abc import Callable, Collection, Sequence

import numpy as np

from gigpo_jax.trajectory import Step


def needed_columns(
    steps: Sequence[Step],
    needs: Collection[str],
    anchor_lanes: np.ndarray,
    hash_texts: Callable[[Sequence[str]], np.ndarray],
) -> dict[str, np.ndarray]:
    """Collects optional columns of steps by name.

    Args:
      steps: steps of finished episodes of this host, whole groups.
      needs: names as for `step_columns`.
      anchor_lanes: [N, 2] u32, hashes of anchor states.
      hash_texts: function from N texts to [N, 2] u32.
    """
    columns = {}
    if "action" in needs:
        columns["action"] = hash_texts([s.turn.action for s in steps])
    if "next_anchor" in needs:
        columns["next_anchor"] = next_step_rows(steps, anchor_lanes)
    if "past" in needs:
        columns["past"] = hash_texts(list_pasts(steps))
    if "won" in needs:
        columns["won"] = np.array([s.episode.won for s in steps], bool)
    if "truncated" in needs:
        columns["truncated"] = np.array([s.truncated for s in steps], bool)
    if "forked" in needs:
        columns["forked"] = np.array([s.episode.is_forked for s in steps], bool)
    if "summary" in needs:
        columns["summary"] = np.array([s.turn.is_text for s in steps], bool)
    return columns


def list_pasts(steps: Sequence[Step]) -> list[str]:
    """The task's actions before each step, as one text."""

    def join(past: str, actions: Sequence[str]) -> str:
        # With lengths: an action may contain what would divide it from the next one.
        return past + "".join(f"{len(action)} {action}" for action in actions)

    pasts = []
    following: dict[int, str] = {}  # past of each trajectory's next step
    for step in steps:
        past = following.get(step.trajectory, join("", step.episode.past.actions))
        pasts.append(past)
        following[step.trajectory] = join(past, [step.turn.action])
    return pasts


def next_step_rows(steps: Sequence[Step], values: np.ndarray) -> np.ndarray:
    """Returns the row of `values` of the next step in each step's episode; zeros at a last step."""
    rows = {(s.trajectory, s.turn_index): row for row, s in enumerate(steps)}
    last = len(steps)  # the row of zeros that is appended below
    next_rows = [rows.get((s.trajectory, s.turn_index + 1), last) for s in steps]
    zeros = np.zeros_like(values, shape=(1, *values.shape[1:]))
    return np.concatenate([values, zeros])[next_rows]
