"""A library of lessons, which prompts show in states like those that the lessons are about.

After SLEA-RL (arXiv 2603.18079): two zones, strategies and warnings; a lesson of a full zone is
admitted if it is better than the worst one there; one that says nearly the same as another is not
added. States are alike if their texts are, as with `rl.anchor_match=similar`: a state joins the
first cluster of its task type whose first member it resembles.

Ours are, as far as we know their paper and their code (docs/experience.md): a lesson belongs to the
clusters of all states of its episode, its score is the distance of the episode's return to the mean
of its task, and a zone has one level.
"""

import functools
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from gigpo_jax.devices.exchange import all_rows
from gigpo_jax.devices.host_records import all_records
from gigpo_jax.env_bridge.types import Task
from gigpo_jax.learner.similarity import least_match, resembles
from gigpo_jax.learner.step_columns import JoinRows
from gigpo_jax.methods.slea.episode_part import LessonsPart
from gigpo_jax.methods.slea.lessons import LESSON, STRATEGIES, WARNINGS, ZONES, write_lessons
from gigpo_jax.rollout.episode import EpisodeRunner
from gigpo_jax.rollout.task_sources import NO_METRICS, TaskSource
from gigpo_jax.trajectory import Trajectory

EPISODES = 5  # of a zone that lessons are written about in an iteration, as in SLEA-RL's code
SIMILARITY = 0.85  # of SLEA-RL, for states and for lessons
# Lessons of each zone. More are slow to search on the host: a state is compared with each.
CAPACITY = 100
_MOST_CLUSTERS = 500  # as in SLEA-RL's code


@dataclass(eq=False)
class LibraryEntry:
    """A lesson in the library.

    Attributes:
      kind: Task kind of its episode.
      text: Its text.
      score: Its score.
      clusters: First members of the clusters of its states.
    """

    kind: str
    text: str
    score: float
    clusters: list[str]


class Library(TaskSource):
    """Lessons of earlier iterations.

    Attributes:
      entries: Lessons by zone, in the order of admission.
      updates: Number of iterations whose lessons it has.
      capacity: Largest number of lessons in a zone.
    """

    name = "library"
    is_for_training = False

    def __init__(self, config: ConfigDict, tasks: Sequence[Task]) -> None:
        """Starts without lessons."""
        del tasks
        # Number of iterations before prompts show lessons.
        self._warmup = config.train.experience
        self.capacity = CAPACITY
        self.entries: dict[str, list[LibraryEntry]] = {zone: [] for zone in ZONES}
        self.updates = 0
        # (task kind, state) -> first member of its cluster, None: of none. Searches take long.
        self._found: dict[tuple[str, str], str | None] = {}

    def find_lessons(self, kind: str, state: str) -> tuple[tuple[str, ...], ...]:
        """The best lessons of each zone for a state, best first.

        They come from the state's cluster, or from the whole task kind if the state is in no
        cluster.
        """
        if self.updates < self._warmup:
            return ((),) * len(ZONES)
        cluster = self._find_cluster(kind, state)
        texts = []
        for name, zone in ZONES.items():
            entries = [
                entry
                for entry in self.entries[name]
                if entry.kind == kind and (cluster is None or cluster in entry.clusters)
            ]
            # Stable: of equal scores the older one.
            entries.sort(key=lambda entry: -entry.score)
            texts.append(tuple(entry.text for entry in entries[: zone.shown]))
        return tuple(texts)

    def _clusters(self, kind: str) -> list[str]:
        """First members of a task kind's clusters, strategies first."""
        clusters: dict[str, None] = {}
        for zone in ZONES:
            for entry in self.entries[zone]:
                if entry.kind == kind:
                    clusters |= dict.fromkeys(entry.clusters)
        return list(clusters)

    def _find_cluster(self, kind: str, state: str) -> str | None:
        if (kind, state) not in self._found:
            clusters = self._clusters(kind)
            matches = (first for first in clusters if _is_similar(state, first))
            self._found[kind, state] = next(matches, None)
        return self._found[kind, state]

    def add_lessons(self, lessons: Sequence[Mapping[str, Any]]) -> None:
        """Adds the lessons of an iteration, as from `join_lessons`."""
        for lesson in lessons:
            self._add(lesson["zone"], lesson["kind"], lesson["text"], lesson["score"], lesson)
        self.updates += 1
        self._found.clear()

    def add(
        self,
        trajectories: Sequence[Trajectory],
        iteration: int,
        metrics: Mapping[str, float] = NO_METRICS,
    ) -> dict[str, float]:
        """Adds the lessons in an iteration's episodes; all hosts call this together."""
        self.add_lessons(join_lessons(trajectories, all_rows))
        return self.metrics

    def _add(
        self, zone: str, kind: str, text: str, score: float, lesson: Mapping[str, Any]
    ) -> None:
        clusters = self._assign_clusters(kind, lesson["states"])
        entries = self.entries[zone]
        for entry in entries:
            if entry.kind == kind and _is_similar(text.lower(), entry.text.lower()):
                entry.score = max(entry.score, score)
                entry.clusters = list(dict.fromkeys((*entry.clusters, *clusters)))
                return
        if len(entries) >= self.capacity:
            worst = min(entries, key=lambda entry: entry.score)
            if score <= worst.score:
                return
            entries.remove(worst)
        entries.append(LibraryEntry(kind, text, score, clusters))

    def _assign_clusters(self, kind: str, states: Sequence[str]) -> list[str]:
        """First members of the states' clusters; a state that resembles no cluster starts one."""
        known = self._clusters(kind)
        assigned: dict[str, None] = {}
        for state in states:
            first = next((first for first in known if _is_similar(state, first)), None)
            if first is None and len(known) < _MOST_CLUSTERS:
                first = state
                known.append(state)
            if first is not None:
                assigned[first] = None
        return list(assigned)

    def make_part(self) -> LessonsPart:
        """Makes the part of an episode that shows lessons."""
        return LessonsPart(self.find_lessons)

    def write_notes(
        self,
        trajectories: Sequence[Trajectory],
        iteration: int,
        make_writers: Callable[[], Mapping[str, EpisodeRunner]],
    ) -> Coroutine[Any, Any, None]:
        """Lets the policy write lessons on the episodes of `choose_episodes`."""
        chosen = choose_episodes(trajectories, all_rows)
        return write_lessons(make_writers(), chosen, iteration)

    @property
    def metrics(self) -> dict[str, float]:
        """Its number of lessons by zone."""
        return {f"experience/{zone}": float(len(self.entries[zone])) for zone in ZONES}

    def record(self) -> dict[str, Any]:
        """The library as JSON values, for a checkpoint's record."""
        entries = {zone: [vars(entry) for entry in self.entries[zone]] for zone in ZONES}
        return {"updates": self.updates, "entries": entries}

    def restore(self, record: Mapping[str, Any]) -> None:
        """Continues from a `record`."""
        self.updates = record["updates"]
        for zone in ZONES:
            self.entries[zone] = [LibraryEntry(**entry) for entry in record["entries"][zone]]
        self._found.clear()


def _is_similar(text: str, first: str) -> bool:
    if text == first:
        return True
    lengths = (len(text), len(first))
    need = least_match(sum(lengths), SIMILARITY)
    # Upper bounds of the matches first: most texts differ in their characters alone.
    if min(lengths) < need or (_count_letters(text) & _count_letters(first)).total() < need:
        return False
    return resembles(SequenceMatcher(None, text, first), lengths, SIMILARITY)


@functools.lru_cache(maxsize=4096)
def _count_letters(text: str) -> Counter[str]:
    return Counter(text)


class RatedEpisode(NamedTuple):
    """An episode that a lesson may be about.

    Attributes:
      trajectory: The episode.
      zone: One of `ZONES`.
      score: Distance of the episode's return to the mean of its task, > 0.
    """

    trajectory: Trajectory
    zone: str
    score: float


def rate_episodes(trajectories: Sequence[Trajectory]) -> list[RatedEpisode]:
    """Rates the episodes of whole groups that did better and won, or worse and lost."""
    played = [t for t in trajectories if not (t.aborted or t.replaced or t.is_forked)]
    returns: dict[int, list[float]] = {}
    for trajectory in played:
        returns.setdefault(trajectory.group, []).append(_penalized_return(trajectory))
    rated = []
    for trajectory in played:
        mean = sum(returns[trajectory.group]) / len(returns[trajectory.group])
        distance = _penalized_return(trajectory) - mean
        zone = STRATEGIES if trajectory.won else WARNINGS
        score = distance if trajectory.won else -distance
        # Where all episodes of a task end alike there is nothing to tell.
        if score > 1e-6:
            rated.append(RatedEpisode(trajectory, zone, score))
    return rated


def choose_episodes(
    trajectories: Sequence[Trajectory], join: JoinRows
) -> list[tuple[Trajectory, str]]:
    """Chooses this host's episodes for lessons, from the best won and worst lost ones of all hosts.

    The distance of their return to the mean of their task decides. All hosts call this together.

    Args:
      trajectories: Trajectories of this host, whole groups.
      join: Function that joins the rows of all hosts.
    """
    rows = []
    candidates: dict[tuple[int, int], tuple[Trajectory, str]] = {}
    for trajectory, zone, score in rate_episodes(trajectories):
        key = (trajectory.group, trajectory.member)
        candidates[key] = (trajectory, zone)
        rows.append(([*ZONES].index(zone), -score, *key))
    table = join(np.array(rows, np.float32).reshape(-1, 4))
    chosen = []
    for zone_number in range(len(ZONES)):
        best = sorted(row for row in map(tuple, table.tolist()) if row[0] == zone_number)
        for _, _, group, member in best[:EPISODES]:
            # Those of other hosts are theirs.
            if (int(group), int(member)) in candidates:
                chosen.append(candidates[int(group), int(member)])
    return chosen


def _penalized_return(trajectory: Trajectory) -> float:
    return trajectory.total_reward - sum(turn.penalty for turn in trajectory.turns)


def join_lessons(trajectories: Sequence[Trajectory], join: JoinRows) -> list[dict[str, Any]]:
    """The lessons of all hosts, in one order on each; all hosts call this together."""
    records = []
    for trajectory, zone, score in rate_episodes(trajectories):
        text = trajectory.notes.get(LESSON)
        if text:
            states = [turn.anchor for turn in trajectory.turns if not turn.is_text]
            record = {
                "zone": zone,
                "score": score,
                "text": text,
                "kind": trajectory.task.kind,
                "states": list(dict.fromkeys(states)),
                "place": [trajectory.group, trajectory.member],
            }
            records.append(record)
    return sorted(all_records(records, join), key=lambda lesson: lesson["place"])
