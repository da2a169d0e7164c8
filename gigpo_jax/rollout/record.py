"""Saved rollouts: the one module that knows the file format (docs/rollouts.md). numpy and the standard library only."""

import base64
import gzip
import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from gigpo_jax.env_bridge.png import encode_png, png_size
from gigpo_jax.errors import InputError, writing
from gigpo_jax.files import replacing
from gigpo_jax.models.images import ReadImage, picture_of
from gigpo_jax.trajectory import StepCredit, Trajectory, Turn, finished_steps

FORMAT, VERSION = "gigpo_jax rollouts", 3
READ = (1, 2, 3)  # versions that are read; version 1 has no answers, 2 no environments and no pictures
SUFFIX = ".jsonl.gz"
_SHARED = ("prompt", "response", "action", "observation", "anchor")  # texts that are stored once a file
_OF_TURN = (
    *("prompt", "response", "action", "valid", "admissible", "observation", "anchor", "reward", "penalty"),
    *("finish_reason", "version"),
)
_OF_TRAJECTORY = ("group", "member", "won", "score", "aborted", "reason", "words", "replaced", "reflection")
_DIGITS = 6  # after the point; of rewards and advantages
_TOKEN_DIGITS = 4  # of log-probabilities and entropies, nats
_BROKEN = (OSError, EOFError, zlib.error, StopIteration, RecursionError)  # of a file as a whole


@dataclass(frozen=True)
class SavedStep:
    """One environment step. The fields from `returns` on are None where the episode was aborted or replaced.

    Attributes:
      prompt, response, action, valid, admissible, observation, anchor, reward, penalty, finish_reason, version, regret:
        as in `trajectory.Turn`.
      prompt_length: tokens of the prompt.
      tokens: the response's token ids.
      logprobs: their log-probabilities under the policy that sampled them, nats.
      entropy: of the distribution that each token was sampled from, as the learner computes it, nats; None: not scored.
      returns: discounted sum of this and later rewards, without penalties (equation 5).
      episode_advantage, step_advantage, advantage: as the run's algorithm computes them; the last one is their total.
      anchor_group: number of the anchor group in the file.
      anchor_group_size: steps in it.
      pictures: the images of the prompt as the model read them, PNG files.
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


@dataclass(frozen=True)
class SavedEpisode:
    """One episode; fields as in `trajectory.Trajectory`, of its task the id and the other fields of `Task`."""

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
    replaced: bool = False
    reflection: str = ""
    answer: str = ""
    environment: str = ""


@dataclass(frozen=True)
class Rollouts:
    """A file.

    Attributes:
      iteration: finished updates when the episodes were played.
      temperature: that they were sampled at; 0 is greedy.
      episodes: in the order of (group, member).
      pieces: token id -> its text, for every id in the file.
    """

    iteration: int
    temperature: float
    episodes: tuple[SavedEpisode, ...]
    pieces: dict[int, str]


def saved(
    trajectories: Sequence[Trajectory],
    credit: StepCredit,
    entropy: Sequence[np.ndarray] | None,
    *,
    gamma: float,
    iteration: int,
    temperature: float,
    decode: Callable[[Sequence[int]], str],
) -> Rollouts:
    """Puts together what a file holds.

    Args:
      trajectories: in rollout order, aborted ones included.
      credit: of their steps.
      entropy: of each response token, one array [R] f32 a step, nats; None: not scored.
      gamma: discount of the returns.
      iteration, temperature: noted in the file.
      decode: token ids -> text.
    """
    rows = {(step.trajectory, step.step): row for row, step in enumerate(finished_steps(trajectories))}
    if len(rows) != len(credit.total):
        raise ValueError(f"credit of {len(credit.total)} steps for {len(rows)}")
    sizes = np.bincount(credit.anchor_group)
    episodes = []
    files: dict[bytes, bytes] = {}  # digest of an image as read -> PNG
    for place, trajectory in enumerate(trajectories):
        steps = [_saved_step(turn, files) for turn in trajectory.turns]
        returns = _returns([turn.reward for turn in trajectory.turns], gamma)
        for number, step in enumerate(steps):
            row = rows.get((place, number))
            if row is None:
                continue
            steps[number] = replace(
                step,
                entropy=None if entropy is None else _rounded(entropy[row]),
                returns=returns[number],
                episode_advantage=round(float(credit.episode[row]), _DIGITS),
                step_advantage=round(float(credit.step[row]), _DIGITS),
                advantage=round(float(credit.total[row]), _DIGITS),
                anchor_group=int(credit.anchor_group[row]),
                anchor_group_size=int(sizes[credit.anchor_group[row]]),
            )
        episodes.append(_saved_episode(trajectory, steps))
    ids = sorted({token for episode in episodes for step in episode.steps for token in step.tokens})
    return Rollouts(iteration, temperature, tuple(episodes), {token: decode([token]) for token in ids})


def write_rollouts(path: Path, rollouts: Rollouts) -> None:
    """Writes a file, whole or not at all, and makes its folder.

    Raises:
      StorageError: it cannot be written.
    """
    texts: dict[str, int] = {}
    pictures: dict[bytes, int] = {}
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
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        # Without name and time in the header the same content gives the same bytes.
        with (
            replacing(path) as temporary,
            temporary.open("wb") as raw,
            gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as file,
        ):
            for line in (header, *episodes):
                file.write(json.dumps(line, separators=(",", ":")).encode("ascii") + b"\n")


def read_rollouts(path: Path) -> Rollouts:
    """Reads a file; raises InputError if it is missing, damaged, or of another format."""
    try:
        with gzip.open(path, "rt", encoding="ascii") as file:
            lines = (json.loads(line) for line in file)
            header = next(lines)
            found = header.get("format"), header.get("version")
            if found not in [(FORMAT, version) for version in READ]:
                raise InputError(
                    f"{path}: format and version are {found}, need {FORMAT!r} of version {READ}; save it again"
                )
            pictures = [_picture(text) for text in header.get("pictures", ())]
            episodes = tuple(_episode(line, header["texts"], pictures) for line in lines)
        if len(episodes) != header["episodes"]:
            raise InputError(f"{path}: has {len(episodes)} of {header['episodes']} episodes; save it again")
        pieces = {int(token): piece for token, piece in header["pieces"].items()}
        tokens = {token for episode in episodes for step in episode.steps for token in step.tokens}
        if tokens - pieces.keys():
            raise ValueError("a token has no text")
        return Rollouts(header["iteration"], header["temperature"], episodes, pieces)
    except (*_BROKEN, ValueError, LookupError, TypeError, AttributeError) as err:
        raise InputError(f"{path}: not a file of saved rollouts ({type(err).__name__}: {err})") from err


def _returns(rewards: Sequence[float], gamma: float) -> list[float]:
    out: list[float] = []
    total = 0.0
    for reward in reversed(rewards):
        total = reward + gamma * total
        out.append(round(total, _DIGITS))
    return out[::-1]


def _saved_step(turn: Turn, files: dict[bytes, bytes]) -> SavedStep:
    """A step without its credit; `files` are the pictures so far, which groups repeat."""
    read = () if turn.images is None else turn.images.images
    return SavedStep(
        **{name: getattr(turn, name) for name in _OF_TURN},
        prompt_length=len(turn.prompt_tokens),
        tokens=tuple(turn.response_tokens.tolist()),
        logprobs=_rounded(turn.logprobs),
        pictures=tuple(_file(image, files) for image in read),
    )


def _file(image: ReadImage, files: dict[bytes, bytes]) -> bytes:
    if image.digest not in files:
        files[image.digest] = encode_png(picture_of(image))
    return files[image.digest]


def _saved_episode(trajectory: Trajectory, steps: Sequence[SavedStep]) -> SavedEpisode:
    task = trajectory.task
    same = {name: getattr(trajectory, name) for name in _OF_TRAJECTORY}
    same |= {name: getattr(task, name) for name in ("type", "split", "data", "answer", "environment")}
    return SavedEpisode(task=task.id, steps=tuple(steps), **same)


def _rounded(values: np.ndarray) -> tuple[float, ...]:
    return tuple(round(value, _TOKEN_DIGITS) for value in values.tolist())


def _episode_as_json(episode: SavedEpisode, texts: dict[str, int], pictures: dict[bytes, int]) -> dict[str, Any]:
    steps = [
        {name: texts.setdefault(value, len(texts)) if name in _SHARED else value for name, value in vars(step).items()}
        | {"pictures": [pictures.setdefault(picture, len(pictures)) for picture in step.pictures]}
        for step in episode.steps
    ]
    return vars(episode) | {"steps": steps}


def _picture(text: str) -> bytes:
    data = base64.b64decode(text, validate=True)
    png_size(data)  # raises ValueError if it is no PNG file
    return data


def _episode(line: dict[str, Any], texts: Sequence[str], pictures: Sequence[bytes]) -> SavedEpisode:
    steps = (SavedStep(**dict(_values(step, texts, pictures))) for step in line["steps"])
    return SavedEpisode(**line | {"steps": tuple(steps)})


def _values(step: dict[str, Any], texts: Sequence[str], pictures: Sequence[bytes]) -> Iterator[tuple[str, Any]]:
    for name, value in step.items():
        if name in _SHARED:
            value = texts[value]
        elif name == "pictures":
            value = [pictures[number] for number in value]
        yield name, tuple(value) if isinstance(value, list) else value
