"""What the page shows of a run, as JSON values: curves, the panel, and the saved episodes by task group.

Texts of a task group are large and looked at one group at a time. So each group is packed by itself (gzip, base64) and
unpacked by the page when it is opened; only what the list of groups shows is there at once. Pictures, which groups
share, stand beside them, each once.
"""

import base64
import gzip
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gigpo_jax.config.tree import flat
from gigpo_jax.errors import InputError
from gigpo_jax.rollout.record import SUFFIX, Rollouts, SavedEpisode, SavedStep, read_rollouts
from gigpo_jax.run.intervals import wilson_interval

Measured = Mapping[tuple[int, int, int], tuple[float, float, float | None]]
MAX_EPISODES = 500  # of a run; the newest files come first
MAX_BYTES = 18e6  # of a run's groups and pictures
CURVES = ("episode/success_rate", "val/sampled/success_rate", "episode/length", "policy/entropy")
SETTINGS = ("rl.algorithm", "rl.preset", "rl.gamma", "rl.step_weight", "env.name", "env.max_steps", "seed")


def run_page(folder: Path, name: str, pictures: dict[bytes, int]) -> tuple[dict[str, Any], dict[str, str]]:
    """Everything that the page shows of a run.

    Args:
      folder: the workdir.
      name: of the run on the page; ids of its groups begin with it.
      pictures: PNG file -> its number; those of the run are added.

    Returns:
      What is there at once, and id -> packed group.

    Raises:
      InputError: no run is there, or one of its files is damaged.
    """
    try:
        config = flat(json.loads((folder / "config.json").read_text(encoding="utf-8")))
        lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        metrics = [json.loads(line) for line in lines]
    except (OSError, ValueError) as error:
        raise InputError(f"{folder}: holds no run that can be read ({error}); give a workdir") from error
    groups: list[dict[str, Any]] = []
    packed: dict[str, str] = {}
    before = len(pictures)
    for summary, content in newest_groups(folder, pictures):
        summary["id"] = f"{name}{len(packed)}"
        groups.append(summary)
        packed[summary["id"]] = pack(content)
        if sum(map(len, packed.values())) + sum(map(len, list(pictures)[before:])) * 4 / 3 > MAX_BYTES:
            break
    page = {
        "name": str(folder),
        "settings": {key: config.get(key) for key in SETTINGS},
        "iterations": config["train.iterations"],
        "curves": {curve: [[m["step"], m[curve]] for m in metrics if m.get(curve) is not None] for curve in CURVES},
        "panel": panel(folder),
        "groups": groups,
    }
    return page, packed


def newest_groups(folder: Path, pictures: dict[bytes, int]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """`task_groups` of the newest files."""
    count = 0
    for path in newest_rollouts(folder):
        rollouts = read_rollouts(path)
        if count and count + len(rollouts.episodes) > MAX_EPISODES:
            return
        count += len(rollouts.episodes)
        yield from task_groups(rollouts, measured_advantages(path), pictures)


def newest_rollouts(folder: Path) -> list[Path]:
    """The files of saved rollouts: those with measured advantages first, then the newest iteration."""
    measured = sorted((folder / "credit").glob(f"*/rollouts{SUFFIX}"), reverse=True)
    return measured + sorted((folder / "rollouts").glob(f"*{SUFFIX}"), reverse=True)


def measured_advantages(rollouts: Path) -> Measured:
    """What `gigpo_jax.credit` measured of the steps in a file: (group, member, step) -> advantage, error, regret."""
    path = rollouts.with_name("grades.json")
    if not path.exists():
        return {}
    steps = json.loads(path.read_text(encoding="utf-8"))["steps"]
    return {(s["group"], s["member"], s["step"]): (s["advantage"], s["error"], s["regret"]) for s in steps}


def pack(value: Any) -> str:
    """JSON, gzip, base64."""
    return base64.b64encode(gzip.compress(json.dumps(value, separators=(",", ":")).encode(), mtime=0)).decode()


def panel(folder: Path) -> dict[str, Any] | None:
    """Success on the panel by task type, at the first and the last evaluation, with 95% intervals; None without any."""
    files = sorted((folder / "evaluations").glob("iteration_*.json"))
    if not files:
        return None
    shown = [json.loads(file.read_text(encoding="utf-8")) for file in dict.fromkeys((files[0], files[-1]))]
    return {
        "name": shown[-1]["panel"],
        "evaluations": [{"iteration": found["iteration"], "rows": _by_type(found)} for found in shown],
    }


def _by_type(evaluation: dict[str, Any]) -> list[dict[str, Any]]:
    outcomes = defaultdict(list)
    for kind, won in zip(evaluation["types"], evaluation["results"]["sampled"]["won"], strict=True):
        if won is not None:
            outcomes["all"].append(won)
            outcomes[kind].append(won)
    return [
        {"type": kind, "won": sum(won), "tasks": len(won), "interval": wilson_interval(sum(won), len(won))}
        for kind, won in sorted(outcomes.items(), key=lambda item: (item[0] != "all", item[0]))
        if kind
    ]


def task_groups(
    rollouts: Rollouts, measured: Measured, pictures: dict[bytes, int]
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """The task groups of a file: what the list shows of each, and all of it; `pictures` as for `run_page`."""
    groups = defaultdict(list)
    for episode in rollouts.episodes:
        if not episode.replaced:
            groups[episode.group].append(episode)
    for group in sorted(groups):
        episodes = groups[group]
        first = episodes[0]
        texts: dict[str, int] = {}
        content = [_episode(episode, texts, pictures, measured) for episode in episodes]
        tokens = {token for episode in episodes for step in episode.steps for token in step.tokens}
        steps = [step for episode in episodes for step in episode.steps]
        shown = (number for episode in content for step in episode["steps"] for number in step["pictures"])
        summary = {
            "iteration": rollouts.iteration,
            "task": first.task,
            "type": "/".join(filter(None, (first.environment, first.type))),
            "text": (first.words or (first.steps[0].observation if first.steps else ""))[:300],
            "picture": next(shown, None),
            "won": [None if episode.aborted else episode.won for episode in episodes],
            "measured": any((e.group, e.member, i) in measured for e in episodes for i in range(len(e.steps))),
            "disagreement": round(max(map(disagreement, steps), default=0.0), 3),
        }
        pieces = {token: rollouts.pieces[token] for token in sorted(tokens)}
        yield summary, {"episodes": content, "texts": list(texts), "pieces": pieces}


def disagreement(step: SavedStep) -> float:
    """How far the two levels contradict each other: the smaller magnitude where their signs differ, else 0."""
    episode, local = step.episode_advantage or 0.0, step.step_advantage or 0.0
    return min(abs(episode), abs(local)) if episode * local < 0 else 0.0


def _episode(
    episode: SavedEpisode, texts: dict[str, int], pictures: dict[bytes, int], measured: Measured
) -> dict[str, Any]:
    def text(value: str) -> int:
        return texts.setdefault(value, len(texts))

    found = [measured.get((episode.group, episode.member, number)) for number in range(len(episode.steps))]
    steps = [
        {
            "prompt": text(step.prompt),
            "observation": text(step.observation),
            "anchor": text(step.anchor),
            "response": text(step.response),
            "pictures": [pictures.setdefault(picture, len(pictures)) for picture in step.pictures],
            "action": step.action,
            "valid": step.valid,
            "admissible": step.admissible,
            "reward": step.reward,
            "penalty": step.penalty,
            "return": step.returns,
            "episode": step.episode_advantage,
            "step": step.step_advantage,
            "total": step.advantage,
            "group": step.anchor_group,
            "tokens": step.tokens,
            "logprobs": step.logprobs,
            "entropy": step.entropy,
            "oracle": oracle and oracle[:2],
            "regret": oracle[2] if oracle and step.regret is None else step.regret,
        }
        for step, oracle in zip(episode.steps, found, strict=True)
    ]
    fields = ("member", "won", "score", "aborted", "reason")
    return {name: getattr(episode, name) for name in fields} | {"steps": steps}


def page_data(folders: Sequence[Path]) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """`run_page` of one run or two, and id -> packed group or picture (PNG, base64)."""
    pictures: dict[bytes, int] = {}
    pages = [run_page(folder, name, pictures) for folder, name in zip(folders, "ab", strict=False)]
    packed = {key: value for _, groups in pages for key, value in groups.items()}
    packed |= {f"p{number}": base64.b64encode(picture).decode() for picture, number in pictures.items()}
    return [page for page, _ in pages], packed
