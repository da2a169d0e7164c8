"""The data of the page as JSON values: curves, the panel, and the saved episodes by task group.

The texts of a task group are large, and a reader opens one group at a time. So each group is packed
by itself (gzip, base64), and the page unpacks it when it is opened; the page itself has only the
summaries of the list of groups. Pictures, which groups share, are stored once beside them.
"""

import base64
import gzip
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gigpo_jax.config.keys import flatten
from gigpo_jax.core.files import read_object
from gigpo_jax.core.proportion import wilson_interval
from gigpo_jax.env_bridge.types import IMAGE
from gigpo_jax.rollout.read_record import read_rollouts
from gigpo_jax.rollout.record import SUFFIX, Rollouts, SavedEpisode, SavedStep
from gigpo_jax.run.machine_types import read_types
from gigpo_jax.run.saved_runs import read_records
from gigpo_jax.run.workdir_names import EVALUATIONS, ROLLOUTS
from gigpo_jax.tools.inspect.example import find_example
from gigpo_jax.trajectory import FORKS

# (group, member, step) -> advantage, its standard error, and regret or None, as measured by
# `gigpo_jax.tools.credit`.
MeasuredSteps = Mapping[tuple[int, int, int], tuple[float, float, float | None]]
MAX_EPISODES = 500  # of a run; episodes of the newest files come first
MAX_BYTES = 18e6  # of a run's groups and pictures
CURVES = ("episode/success_rate", "val/sampled/success_rate", "episode/length", "policy/entropy")
SETTINGS = (
    "rl.algorithm",
    "rl.preset",
    "rl.gamma",
    "rl.step_weight",
    "env.name",
    "env.max_steps",
    "seed",
)


def collect_pages(folders: Sequence[Path]) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Collects the data of one run or two.

    Returns:
      The data of each run's page, and packed groups and pictures (PNG, base64) by their ids.
    """
    pictures: dict[bytes, int] = {}
    pages = []
    packed: dict[str, str] = {}
    for folder, name in zip(folders, "ab", strict=False):
        page, groups = collect_run(folder, name, pictures)
        pages.append(page)
        packed |= groups
    # Numbers go on over both runs, so that they share equal pictures.
    for picture, number in pictures.items():
        packed[f"p{number}"] = base64.b64encode(picture).decode()
    return pages, packed


def collect_run(
    folder: Path, name: str, pictures: dict[bytes, int]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Collects the data of a run.

    Args:
      folder: Workdir.
      name: Name of the run on the page; ids of its groups begin with it.
      pictures: Numbers of PNG files; the run's files are added.

    Returns:
      The data of the page, and packed groups by their ids.

    Raises:
      InputError: There is no run, or one of its files is damaged.
    """
    content, metrics = read_records(folder)
    config = flatten(content)
    summaries, packed = _pack_groups(folder, name, pictures)
    page = {
        "name": str(folder),
        "settings": {key: config.get(key) for key in SETTINGS},
        "machines": read_types(folder),
        "iterations": config["train.iterations"],
        "curves": {curve: _select_points(metrics, curve) for curve in CURVES},
        "panel": summarize_panel(folder),
        "groups": summaries,
    }
    return page, packed


def _select_points(metrics: Sequence[Mapping[str, Any]], name: str) -> list[list[float]]:
    """Pairs of step and value of a metric."""
    return [[record["step"], record[name]] for record in metrics if record.get(name) is not None]


def _pack_groups(
    folder: Path, name: str, pictures: dict[bytes, int]
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Packs a run's newest task groups, up to `MAX_BYTES`."""
    summaries: list[dict[str, Any]] = []
    packed: dict[str, str] = {}
    group_bytes = 0
    # Pictures of the first of two runs do not count against the second.
    earlier_pictures = len(pictures)
    for summary, content in _read_newest_groups(folder, pictures):
        # The id has no text of the run in it: it becomes an attribute of HTML.
        summary["id"] = f"{name}{len(packed)}"
        summaries.append(summary)
        packed[summary["id"]] = pack_json(content)
        group_bytes += len(packed[summary["id"]])
        picture_bytes = sum(map(len, list(pictures)[earlier_pictures:]))
        # Base64 makes 4 characters of 3 bytes.
        if group_bytes + picture_bytes * 4 / 3 > MAX_BYTES:
            break
    return summaries, packed


def _read_newest_groups(
    folder: Path, pictures: dict[bytes, int]
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yields `summarize_groups` of the newest files, up to `MAX_EPISODES`."""
    count = 0
    for path in list_rollouts(folder):
        rollouts = read_rollouts(path)
        # The newest file is shown whole, however many episodes it has.
        if count and count + len(rollouts.episodes) > MAX_EPISODES:
            return
        count += len(rollouts.episodes)
        yield from summarize_groups(rollouts, read_measured_steps(path), pictures)


def list_rollouts(folder: Path) -> list[Path]:
    """The files of saved rollouts, newest first, behind the ones with measured advantages."""
    measured_paths = sorted((folder / "credit").glob(f"*/rollouts{SUFFIX}"), reverse=True)
    return measured_paths + sorted((folder / ROLLOUTS).glob(f"*{SUFFIX}"), reverse=True)


def read_measured_steps(rollouts: Path) -> MeasuredSteps:
    """Reads measured advantages beside a rollouts file; {} without any."""
    # A measurement that was stopped has rollouts and no grades yet.
    path = rollouts.with_name("grades.json")
    if not path.exists():
        return {}
    steps: dict[tuple[int, int, int], tuple[float, float, float | None]] = {}
    for step in json.loads(path.read_text(encoding="utf-8"))["steps"]:
        key = (step["group"], step["member"], step["step"])
        steps[key] = (step["advantage"], step["error"], step["regret"])
    return steps


def pack_json(value: Any) -> str:
    """Encodes a value as JSON, gzip and base64."""
    text = json.dumps(value, separators=(",", ":"))
    # mtime=0: the same run gives the same page.
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def summarize_panel(folder: Path) -> dict[str, Any] | None:
    """Success by task type with 95% intervals, at the run's first and last evaluation, or None."""
    paths = sorted((folder / EVALUATIONS).glob("iteration_*.json"))
    if not paths:
        return None
    # A run with one evaluation has the same path twice.
    paths = list(dict.fromkeys((paths[0], paths[-1])))
    evaluations = [read_object(path, fix="give another workdir") for path in paths]
    return {
        "name": evaluations[-1]["panel"],
        "evaluations": [
            {"iteration": evaluation["iteration"], "rows": _summarize_types(evaluation)}
            for evaluation in evaluations
        ],
    }


def _summarize_types(evaluation: dict[str, Any]) -> list[dict[str, Any]]:
    """A row for all tasks, then one for each type; aborted episodes are left out."""
    outcomes = defaultdict(list)
    results = evaluation["results"]["sampled"]["won"]
    for task_type, won in zip(evaluation["types"], results, strict=True):
        # An aborted episode is a failure of the environment, not a loss.
        if won is not None:
            outcomes["all"].append(won)
            outcomes[task_type].append(won)
    rows = []
    for task_type in sorted(outcomes, key=lambda name: (name != "all", name)):
        if not task_type:
            continue
        count = len(outcomes[task_type])
        wins = sum(outcomes[task_type])
        interval = wilson_interval(wins, count)
        rows.append({"type": task_type, "won": wins, "tasks": count, "interval": interval})
    return rows


def summarize_groups(
    rollouts: Rollouts, measured_steps: MeasuredSteps, pictures: dict[bytes, int]
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yields the summary and content of each task group.

    Args:
      rollouts: Saved rollouts.
      measured_steps: Measured advantages of their steps.
      pictures: Numbers of PNG files, as for `collect_run`.
    """
    groups = defaultdict(list)
    for episode in rollouts.episodes:
        # Replaced episodes took no part in training.
        if not episode.replaced:
            groups[episode.group].append(episode)
    for group in sorted(groups):
        episodes = groups[group]
        texts: dict[str, int] = {}
        contents = [
            _describe_episode(episode, texts, pictures, measured_steps) for episode in episodes
        ]
        summary = _summarize_group(rollouts.iteration, episodes, contents)
        # A vocabulary may have over 100,000 pieces; a group needs the pieces of its responses.
        tokens: set[int] = set()
        for episode in episodes:
            for step in episode.steps:
                tokens.update(step.tokens)
        pieces = {token: rollouts.pieces[token] for token in sorted(tokens)}
        yield summary, {"episodes": contents, "texts": list(texts), "pieces": pieces}


def _summarize_group(
    iteration: int, episodes: Sequence[SavedEpisode], contents: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """A task group's entry in the list of groups."""
    first = episodes[0]
    text = first.words
    if not text and first.steps:
        text = first.steps[0].observation
    picture_numbers: list[int] = []
    is_measured = False
    for content in contents:
        for step in content["steps"]:
            picture_numbers += step["pictures"]
            is_measured = is_measured or step["oracle"] is not None
    disagreements = [0.0]
    for episode in episodes:
        disagreements += map(measure_disagreement, episode.steps)
    return {
        "iteration": iteration,
        "task": first.task,
        "type": "/".join(filter(None, (first.environment, first.type))),
        "text": text[:300],
        "picture": picture_numbers[0] if picture_numbers else None,
        "won": [None if episode.aborted else episode.won for episode in episodes],
        "measured": is_measured,
        "disagreement": round(max(disagreements), 3),
        "example": find_example(contents),
    }


def measure_disagreement(step: SavedStep) -> float:
    """The smaller magnitude of the episode and the step advantage if their signs differ, else 0."""
    episode_advantage = step.episode_advantage or 0.0
    step_advantage = step.step_advantage or 0.0
    # Equal signs, or one of them says nothing.
    if episode_advantage * step_advantage >= 0:
        return 0.0
    return min(abs(episode_advantage), abs(step_advantage))


def _describe_episode(
    episode: SavedEpisode,
    texts: dict[str, int],
    pictures: dict[bytes, int],
    measured_steps: MeasuredSteps,
) -> dict[str, Any]:
    """An episode as JSON values; its texts and pictures are added to the tables of numbers."""
    steps = []
    for index, step in enumerate(episode.steps):
        measurement = measured_steps.get((episode.group, episode.member, index))
        content = _describe_step(step, texts, pictures)
        content["oracle"] = measurement[:2] if measurement else None
        # Rollouts of training tell the regret themselves if the environment was asked for it.
        if measurement and step.regret is None:
            content["regret"] = measurement[2]
        steps.append(content)
    return {
        "member": episode.member,
        "won": episode.won,
        "score": episode.score,
        "aborted": episode.aborted,
        "reason": episode.reason,
        "replayed": len(episode.past),
        "forked": episode.source == FORKS,
        "steps": steps,
    }


def _describe_step(
    step: SavedStep, texts: dict[str, int], pictures: dict[bytes, int]
) -> dict[str, Any]:
    def number_text(text: str) -> int:
        # Prompts repeat observations of their group: a table of distinct texts makes pages small.
        return texts.setdefault(text, len(texts))

    # Behind pictures of earlier observations of the prompt. Agent programs may mark none; -0: all.
    seen_pictures = step.pictures[-step.observation.count(IMAGE) :]
    return {
        "prompt": number_text(step.prompt),
        "observation": number_text(step.observation),
        "anchor": number_text(step.anchor),
        "response": number_text(step.response),
        "pictures": [pictures.setdefault(picture, len(pictures)) for picture in seen_pictures],
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
        "versions": step.versions,
        "entropy": step.entropy,
        "oracle": None,
        "regret": step.regret,
        "summary": step.is_summary,
    }
