"""Plays continuations from states and keeps their returns in a file, so that a stopped measurement can be continued."""

import json
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import numpy as np

from gigpo_jax.credit.states import State
from gigpo_jax.errors import InputError
from gigpo_jax.rollout.rollout import TooManyAborted
from gigpo_jax.trajectory import Trajectory

# (tasks, pasts, number of the first, continuations of each) -> trajectories in order
Play = Callable[..., Awaitable[list[Trajectory]]]


def read_returns(path: Path, states: Sequence[State]) -> list[np.ndarray]:
    """The returns of the first states, as far as they are in the file; a line that a kill cut off is removed.

    Args:
      path: may be missing.
      states: all of them, in order.

    Raises:
      InputError: the file belongs to other states.
    """
    if not path.exists():
        return []
    lines = path.read_bytes().splitlines(keepends=True)
    if lines and not lines[-1].endswith(b"\n"):
        path.write_bytes(b"".join(lines[:-1]))
        lines.pop()
    returns = []
    try:
        for line, state in zip(lines, states, strict=False):  # more of them were measured than are asked for now
            found = json.loads(line)
            if (found["group"], tuple(found["past"])) != (state.group, state.past):
                raise InputError(f"{path}: holds the returns of other states; remove its folder to measure anew")
            returns.append(np.array(found["returns"], np.float64))
    except (ValueError, KeyError, TypeError) as err:
        raise InputError(f"{path}: damaged ({err}); remove its folder to measure anew") from err
    return returns


async def continue_from(
    states: Sequence[State], path: Path, play: Play, *, number: int, at_once: int, progress: Callable[[int], object]
) -> dict[State, np.ndarray]:
    """The returns of continuations from every state, played where the file does not have them yet.

    Args:
      states: where to start; the number of a state is part of the random keys of its continuations.
      path: the file, one line a state.
      play: plays `number` continuations of each of some states: arguments tasks, pasts, first_group, group_size.
      number: continuations of a state, >= 4: two for each half.
      at_once: states that are played together; what a stop loses at most.
      progress: called with the number of states that are new.

    Returns:
      state -> [K] f64: sums of rewards minus penalties, of those that were not aborted.

    Raises:
      InputError: the file belongs to other states.
      TooManyAborted: fewer than four continuations of a state were finished.
    """
    returns = read_returns(path, states)
    progress(len(returns))
    with path.open("a", encoding="ascii") as file:
        for first in range(len(returns), len(states), at_once):
            some = states[first : first + at_once]
            played = await play(
                [state.task for state in some],
                pasts=[state.past for state in some],
                first_group=first,
                group_size=number,
            )
            for index, state in enumerate(some):
                mine = [_return(t) for t in played[index * number : (index + 1) * number] if not t.aborted]
                if len(mine) < 4:
                    raise TooManyAborted(f"{len(mine)} of {number} continuations from a state were finished")
                file.write(json.dumps({"group": state.group, "past": state.past, "returns": mine}) + "\n")
                returns.append(np.array(mine, np.float64))
            file.flush()
            progress(len(some))
    return dict(zip(states, returns, strict=True))


def _return(trajectory: Trajectory) -> float:
    return float(sum(turn.reward - turn.penalty for turn in trajectory.turns))
