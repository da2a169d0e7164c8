"""Saved rollouts and how their files are written (docs/rollouts.md); `read_record` reads them."""

import base64
import gzip
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from gigpo_jax.core.errors import storage_errors
from gigpo_jax.core.files import replace_file
from gigpo_jax.trajectory import StepCredit, Trajectory, Turn, finished_steps

FORMAT = "gigpo_jax rollouts"
VERSION = 8
SUFFIX = ".jsonl.gz"
# Texts that are stored once a file: steps of a group repeat them.
SHARED_TEXTS = ("prompt", "response", "action", "observation", "anchor")
_DIGITS = 6  # after the point, of rewards and advantages
_TOKEN_DIGITS = 4  # after the point, of log-probabilities and entropies, nats


@dataclass(frozen=True)
class SavedStep:
    """One environment step, or a summary before one.

    `returns`, the advantages and the anchor group are None if the episode was aborted or replaced.

    Attributes:
      prompt, response, action, valid, admissible, observation, anchor, reward, penalty,
      finish_reason, version, regret:
        See `trajectory.Turn`.
      is_summary: `Turn.is_text`, by an older name.
      prompt_length: Number of tokens of the prompt.
      tokens: Token ids of the response.
      logprobs: Their log-probabilities under the policy that sampled them, nats.
      entropy: Entropy of the distribution that each token was sampled from, as the learner computes
        it, nats; None: not scored.
      returns: Discounted sum of this and later rewards, without penalties (equation 5).
      episode_advantage, step_advantage, advantage: Advantages of the run's algorithm; the last one
        is their total.
      anchor_group: Number of the anchor group in the file.
      anchor_group_size: Number of steps in the anchor group.
      pictures: Images of `prompt` as the model read them, PNG files; in a conversation the images
        of the new message.
      versions: Version of the weights that sampled each token; None: all are `version`.
    """

    prompt: str
    response: str
    action: str
    valid: bool
    admissible: bool | None
    observation: str
    anchor: str
    reward: float
    penalty: float
    finish_reason: str
    version: int
    prompt_length: int
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    regret: float | None = None
    entropy: tuple[float, ...] | None = None
    returns: float | None = None
    episode_advantage: float | None = None
    step_advantage: float | None = None
    advantage: float | None = None
    anchor_group: int | None = None
    anchor_group_size: int | None = None
    pictures: tuple[bytes, ...] = ()
    is_summary: bool = False
    versions: tuple[int, ...] | None = None


@dataclass(frozen=True)
class SavedEpisode:
    """One episode and its task, with the fields of `trajectory.Trajectory` and of `Task`.

    `task` is the id, `past` the replayed actions, and `source` the source of the past, "" without
    one.
    """

    task: str
    type: str
    split: str
    data: str
    group: int
    member: int
    won: bool
    score: float
    aborted: bool
    reason: str
    steps: tuple[SavedStep, ...]
    words: str = ""
    truncated: bool = False
    replaced: bool = False
    notes: Mapping[str, str] = field(default_factory=dict)
    answer: str = ""
    environment: str = ""
    past: tuple[str, ...] = ()
    source: str = ""

    @property
    def length(self) -> int:
        """Number of environment steps."""
        return sum(not step.is_summary for step in self.steps)


@dataclass(frozen=True)
class Rollouts:
    """The content of a file.

    Attributes:
      iteration: Number of finished updates when the episodes were played.
      temperature: Sampling temperature; 0 is greedy.
      episodes: Episodes in the order of (group, member).
      pieces: Text of every token id in the file.
    """

    iteration: int
    temperature: float
    episodes: tuple[SavedEpisode, ...]
    pieces: dict[int, str]


def collect_rollouts(
    trajectories: Sequence[Trajectory],
    credit: StepCredit,
    entropy: Sequence[np.ndarray] | None,
    *,
    gamma: float,
    iteration: int,
    temperature: float,
    decode: Callable[[Sequence[int]], str],
) -> Rollouts:
    """Combines trajectories and their credit into a file's content.

    Args:
      trajectories: Trajectories in rollout order, aborted ones included.
      credit: Credit of their finished steps.
      entropy: Entropy of each response token, one array [R] f32 a step, nats; None: not scored.
      gamma: Discount factor of the returns.
      iteration, temperature: See `Rollouts`.
      decode: Function token ids -> text.
    """
    finished = finished_steps(trajectories)
    rows = {(step.trajectory, step.turn_index): row for row, step in enumerate(finished)}
    # A text that several episodes share is one row, which all of them show.
    texts = {id(step.turn): row for row, step in enumerate(finished) if step.turn.is_text}
    if len(rows) != len(credit.total):
        raise ValueError(f"credit of {len(credit.total)} steps for {len(rows)}")
    group_sizes = np.bincount(credit.anchor_group)
    episodes = []
    png_files: dict[bytes, bytes] = {}
    for place, trajectory in enumerate(trajectories):
        steps = [_make_step(turn, png_files) for turn in trajectory.turns]
        returns = _discounted_returns(trajectory.turns, gamma)
        for number, step in enumerate(steps):
            # A step of an aborted or replaced episode has no credit.
            if trajectory.aborted or trajectory.replaced:
                continue
            row = rows.get((place, number))
            if row is None:
                row = texts[id(trajectory.turns[number])]
            steps[number] = replace(
                step,
                entropy=None if entropy is None else _round_tokens(entropy[row]),
                returns=returns[number],
                episode_advantage=round(float(credit.episode[row]), _DIGITS),
                step_advantage=round(float(credit.step[row]), _DIGITS),
                advantage=round(float(credit.total[row]), _DIGITS),
                anchor_group=int(credit.anchor_group[row]),
                anchor_group_size=int(group_sizes[credit.anchor_group[row]]),
            )
        episodes.append(_make_episode(trajectory, steps))
    # Readers of the file then need no tokenizer.
    pieces = {token: decode([token]) for token in sorted(list_tokens(episodes))}
    return Rollouts(iteration, temperature, tuple(episodes), pieces)


def list_tokens(episodes: Sequence[SavedEpisode]) -> set[int]:
    """Lists the token ids of all responses."""
    ids: set[int] = set()
    for episode in episodes:
        for step in episode.steps:
            ids.update(step.tokens)
    return ids


def write_rollouts(path: Path, rollouts: Rollouts) -> None:
    """Writes a file, whole or not at all, and makes its folder if needed.

    Raises:
      StorageError: it cannot be written.
    """
    texts: dict[str, int] = {}
    pictures: dict[bytes, int] = {}
    # First the episodes: they collect the texts and pictures that the header lists.
    episodes = [_episode_as_json(episode, texts, pictures) for episode in rollouts.episodes]
    header = {
        "format": FORMAT,
        "version": VERSION,
        "iteration": rollouts.iteration,
        "temperature": rollouts.temperature,
        "episodes": len(episodes),
        "pieces": rollouts.pieces,
        "texts": list(texts),
        "pictures": [base64.b64encode(picture).decode() for picture in pictures],
    }
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        # Without name and time in the header the same content gives the same bytes.
        with (
            replace_file(path) as temporary,
            temporary.open("wb") as raw,
            gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as file,
        ):
            for line in (header, *episodes):
                # json escapes control characters and all but ASCII: whatever texts hold, a line
                # of the file is one line.
                file.write(json.dumps(line, separators=(",", ":")).encode("ascii") + b"\n")


def _discounted_returns(turns: Sequence[Turn], gamma: float) -> list[float]:
    returns: list[float] = []
    total = 0.0
    for turn in reversed(turns):
        # A summary takes no step of the environment.
        total = turn.reward + (1.0 if turn.is_text else gamma) * total
        # Only the stored number is rounded, and not the running sum.
        returns.append(round(total, _DIGITS))
    return returns[::-1]


def _make_step(turn: Turn, png_files: dict[bytes, bytes]) -> SavedStep:
    """A step without its credit.

    Args:
      turn: Turn of the trajectory.
      png_files: PNG files by the digest of an image, encoded once; new ones are added.
    """
    pictures: tuple[bytes, ...] = ()
    if turn.images is not None:
        from gigpo_jax.rollout.saved_pictures import encode_pictures

        pictures = encode_pictures(turn, png_files)
    return SavedStep(
        **_shared_fields(SavedStep, turn)
        | {
            "logprobs": _round_tokens(turn.logprobs),
            "is_summary": turn.is_text,
            "versions": None if turn.versions is None else tuple(turn.versions.tolist()),
        },
        prompt_length=len(turn.prompt_tokens),
        tokens=tuple(turn.response_tokens.tolist()),
        pictures=pictures,
    )


def _make_episode(trajectory: Trajectory, steps: Sequence[SavedStep]) -> SavedEpisode:
    past_and_task = {
        "task": trajectory.task.id,
        "past": trajectory.past.actions,
        "source": trajectory.past.source if trajectory.past.actions else "",
    }
    task = _shared_fields(SavedEpisode, trajectory.task)
    values = task | _shared_fields(SavedEpisode, trajectory) | past_and_task
    return SavedEpisode(**values, steps=tuple(steps))


def _shared_fields(kind: type, source: object) -> dict[str, Any]:
    """The values of a type's fields that another object has too."""
    names = [entry.name for entry in fields(kind)]
    return {name: getattr(source, name) for name in names if hasattr(source, name)}


def _round_tokens(values: np.ndarray) -> tuple[float, ...]:
    return tuple(round(value, _TOKEN_DIGITS) for value in values.tolist())


def _episode_as_json(
    episode: SavedEpisode, texts: dict[str, int], pictures: dict[bytes, int]
) -> dict[str, Any]:
    """Returns a line of the file, where texts and pictures are numbers by first use."""
    steps = []
    for step in episode.steps:
        values = dict(vars(step))
        for name in SHARED_TEXTS:
            values[name] = texts.setdefault(values[name], len(texts))
        values["pictures"] = [
            pictures.setdefault(picture, len(pictures)) for picture in step.pictures
        ]
        steps.append(values)
    return vars(episode) | {"steps": steps}
