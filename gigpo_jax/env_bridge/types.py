"""The types that environments and the rest of the program exchange."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

# The mark of an image in an observation that has images; plain text in any other.
IMAGE = "<image>"


class EnvError(RuntimeError):
    """Failure of an environment, its process or a needed service, which aborts the episode.

    The run continues.
    """

    status = 1  # exit status of a command that the error ends


class StepError(EnvError):
    """Failure of one call of an environment: it raised, returned a bad result, or timed out.

    The cause may be the action, so leaving the episode out may bias the statistics.
    """


@dataclass(frozen=True)
class Task:
    """A task of an environment, whose episodes all start from the same state.

    Attributes:
      id: Stable name, unique in its environment; panels list it.
      type: Kind of task; success is reported for each kind ("" if there is one kind only).
      split: Split of the task, such as "train" or "valid_unseen".
      data: Key of the task in the environment's data (a path, an index); plain text.
      answer: Correct answer, where there is one; no prompt shows it.
      environment: Label of the environment in a run with several (`env.mix`); the run sets it.
    """

    id: str
    type: str
    split: str
    data: str = ""
    answer: str = ""
    # Not compared: the run adds the label, and worker processes return tasks without it.
    environment: str = field(default="", compare=False)

    @property
    def kind(self) -> str:
        """Environment and type, as metrics name them."""
        return "/".join(filter(None, (self.environment, self.type)))


@dataclass(frozen=True)
class Observation:
    """What an agent sees.

    Attributes:
      text: Raw text of the environment.
      anchor: Anchor state as text, hashed by `anchor_hash`. GiGPO compares the steps of a group
        that share it.
      admissible: Actions with an effect in this state, in the environment's order; None if the
        environment cannot list them.
      task: Task in words, the same at every step of an episode.
      images: RGB images, uint8 [H, W, 3] each; `IMAGE` marks the place of each in `text`. `==`
        ignores them.
    """

    text: str
    anchor: str
    admissible: tuple[str, ...] | None
    task: str
    # Not compared: `==` of arrays is an array, which has no truth value.
    images: tuple[np.ndarray, ...] = field(default=(), compare=False)


@dataclass(frozen=True)
class StepResult:
    """The result of an action.

    Attributes:
      observation: Next observation.
      reward: Environment's reward of this step, in the units of the published settings.
      done: Whether the episode is over.
      info: "won" (bool), "score" (float in [0, 1]) and, if the environment can compute it, "regret"
        (float); a worker process drops other keys. The score is the share of the task that is done
        after this step: 1 if and only if the task is won, 0 without partial success. The score of
        an episode is the score of its last step. The regret is the number of additional actions to
        the goal, compared with the best action.
    """

    observation: Observation
    reward: float
    done: bool
    info: Mapping[str, bool | float]


def anchor_hash(state: str | bytes) -> tuple[int, int]:
    """Hashes an anchor state to two u32 lanes of a BLAKE2b digest, the same on every machine.

    Text is hashed as UTF-8.
    """
    data = state
    if isinstance(data, str):
        # Environments may emit lone surrogates; plain UTF-8 would raise on them.
        data = data.encode("utf-8", "surrogatepass")
    # Not `hash`, which differs between processes. Two lanes, because jax has no 64-bit integers
    # unless `jax_enable_x64` is set.
    digest = hashlib.blake2b(data, digest_size=8).digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")
