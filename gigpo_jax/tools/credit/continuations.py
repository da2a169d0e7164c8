"""Continuations from states, and their returns in a file from which a stopped one resumes."""

import json
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import numpy as np

from gigpo_jax.core.errors import InputError
from gigpo_jax.core.files import replace_file
from gigpo_jax.rollout.recorded_starts import RecordedStarts
from gigpo_jax.rollout.rollout import RolloutJob, TooManyAborted
from gigpo_jax.tools.credit.states import State
from gigpo_jax.trajectory import Past, Trajectory

Play = Callable[[RolloutJob], Awaitable[list[Trajectory]]]
# Stands for the iteration in random keys; training has numbers from 0, evaluation -1 and -2.
# With it no continuation repeats the random draws of an episode.
_KEY_ITERATION = -3
FEWEST = 4  # finished continuations of a state: two for each half


def read_returns(path: Path, states: Sequence[State]) -> list[np.ndarray]:
    """Reads the returns that the file has, which belong to the first states.

    A line that a kill cut off is removed from the file.

    Args:
      path: File of returns; may be missing.
      states: All states, in order.

    Raises:
      InputError: the file belongs to other states.
    """
    if not path.exists():
        return []
    # A line without its end is of a process that was killed while it wrote.
    lines = path.read_bytes().splitlines(keepends=True)
    if lines and not lines[-1].endswith(b"\n"):
        lines.pop()
        # Written beside it first: on a full disk the returns that were played must stay.
        with replace_file(path) as temporary:
            temporary.write_bytes(b"".join(lines))
    returns = []
    try:
        # The file may hold more states than are asked for now.
        for line, state in zip(lines, states, strict=False):
            record = json.loads(line)
            # Lines have no index: states are always in one order, so line k belongs to state k.
            start = (record["group"], tuple(record["past"]), record.get("plan"))
            if start != (state.group, state.past, state.plan):
                raise InputError(
                    "holds the returns of other states",
                    key=path,
                    fix="remove its folder to measure anew",
                )
            returns.append(np.array(record["returns"], np.float64))
    except (ValueError, KeyError, TypeError) as err:
        raise InputError(
            f"damaged ({err})", key=path, fix="remove its folder to measure anew"
        ) from err
    return returns


async def continue_from(
    states: Sequence[State],
    path: Path,
    play: Play,
    *,
    number: int,
    at_once: int,
    progress: Callable[[int], object],
) -> dict[State, np.ndarray]:
    """Plays continuations from every state missing in the file.

    Args:
      states: Start states; the number of a state is part of the random keys of its continuations.
      path: File of returns, one line a state.
      play: Function that plays a job.
      number: Continuations of a state, at least `FEWEST`.
      at_once: States that are played together; a stop loses at most these.
      progress: Called with the number of new states.

    Returns:
      state -> [K] f64: sums of rewards minus penalties of the continuations that were not aborted.

    Raises:
      InputError: the file belongs to other states.
      TooManyAborted: fewer than `FEWEST` continuations of a state were finished.
    """
    returns = read_returns(path, states)
    progress(len(returns))
    # One line a state, flushed after every batch: a kill costs at most the batch that plays.
    with path.open("a", encoding="ascii") as file:
        for first in range(len(returns), len(states), at_once):
            batch = states[first : first + at_once]
            pasts = [
                Past(state.past, responses=state.responses, plan=state.plan) for state in batch
            ]
            job = RolloutJob(
                [state.task for state in batch],
                number,
                _KEY_ITERATION,
                # The index of the state enters the random keys: a resumed measurement draws the
                # same continuations as one that was never stopped.
                first_group=first,
                starts=RecordedStarts(dict(enumerate(pasts, first))),
            )
            trajectories = await play(job)
            for index, state in enumerate(batch):
                continuations = trajectories[index * number : (index + 1) * number]
                # An abort is a failure of the environment and not a return of 0.
                state_returns = [_undiscounted_return(t) for t in continuations if not t.aborted]
                if len(state_returns) < FEWEST:
                    raise TooManyAborted(
                        f"{len(state_returns)} of {number} continuations from a state were finished"
                    )
                record = {"group": state.group, "past": state.past, "returns": state_returns}
                if state.plan is not None:
                    record["plan"] = state.plan
                file.write(json.dumps(record) + "\n")
                returns.append(np.array(state_returns, np.float64))
            file.flush()
            progress(len(batch))
    return dict(zip(states, returns, strict=True))


def _undiscounted_return(trajectory: Trajectory) -> float:
    return float(sum(turn.reward - turn.penalty for turn in trajectory.turns))
