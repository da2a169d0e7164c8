"""The types that environments and the rest of the program exchange."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

IMAGE = "<image>"  # the place of an image in an observation that has images; plain text in any other


class EnvError(RuntimeError):
    """An environment, a service that it needs, or its process failed. The episode is aborted, the run continues."""

    status = 1  # of a command that it ends


class StepError(EnvError):
    """An environment failed at one call: it raised, returned a malformed result, or gave no answer in time.

    The cause may be the action, so leaving the episode out may bias the statistics.
    """


@dataclass(frozen=True)
class Task:
    """One thing to do in an environment; every episode of a task starts from the same state.

    Attributes:
      id: stable name, unique in its environment; panels list it.
      type: the kind of task, success is reported for each ("" if there is one kind only).
      split: the split the task belongs to, such as "train" or "valid_unseen".
      data: what the environment needs to find it again (a path, an index); plain text.
      answer: the answer that is looked for, where there is one; no prompt shows it.
      environment: label of the environment in a run with several (`env.mix`); the run sets it.
    """

    id: str
    type: str
    split: str
    data: str = ""
    answer: str = ""
    environment: str = field(default="", compare=False)

    @property
    def kind(self) -> str:
        """Environment and type, as metrics name them."""
        return "/".join(filter(None, (self.environment, self.type)))


@dataclass(frozen=True)
class Observation:
    """What an agent sees.

    Attributes:
      text: the raw text of the environment.
      anchor: the anchor state as text (GiGPO compares steps of a group that share it); hashed by `anchor_hash`.
      admissible: the actions that would do something here, in the environment's order; None if it cannot say.
      task: the task in words, the same at every step of an episode.
      images: uint8 [H, W, 3] each, RGB; `IMAGE` marks the place of each in `text`. `==` leaves them out.
    """

    text: str
    anchor: str
    admissible: tuple[str, ...] | None
    task: str
    images: tuple[np.ndarray, ...] = field(default=(), compare=False)


@dataclass(frozen=True)
class StepResult:
    """What an action led to.

    Attributes:
      observation: the next observation.
      reward: the environment's reward of this step, in the units of the published settings.
      done: whether the episode is over.
      info: "won" (bool) and "score" (float in [0, 1]), "regret" (float) if the environment can tell; a worker process
        drops other keys. A score is the share of the task that is done after this step: 1 if and only if it is won, 0
        where the environment gives no part of it. The score of an episode is that of its last step. The regret is how
        many actions more the goal needs than after the best action.
    """

    observation: Observation
    reward: float
    done: bool
    info: Mapping[str, bool | float]


def anchor_hash(state: str | bytes) -> tuple[int, int]:
    """Hashes an anchor state (text as UTF-8) to the two u32 lanes of a BLAKE2b digest, the same on every machine."""
    data = state.encode("utf-8", "surrogatepass") if isinstance(state, str) else state
    digest = hashlib.blake2b(data, digest_size=8).digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")
