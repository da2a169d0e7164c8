"""Search-augmented question answering: `registry.make("search")`, with nothing downloaded.

A turn is a search or an answer. An episode ends with an answer or after the fourth turn, so at most
three searches run. Reward 1 for an exact match.

The published description leaves open, and this environment decides: a response that is neither uses
a turn and keeps the anchor; a search in the last turn does not run.
"""

import functools
import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

from gigpo_jax.core.errors import InputError
from gigpo_jax.env_bridge.base import check_whole
from gigpo_jax.env_bridge.option_checks import check_split
from gigpo_jax.env_bridge.paths import expand_path
from gigpo_jax.env_bridge.types import EnvError, Observation, StepResult, Task
from gigpo_jax.envs.search.actions import split_action
from gigpo_jax.envs.search.data import generate
from gigpo_jax.envs.search.data.world import SPLITS
from gigpo_jax.envs.search.questions import Question, load_questions
from gigpo_jax.envs.search.retrieval.bm25_index import open_index
from gigpo_jax.envs.search.retrieval.client import RetrieverClient
from gigpo_jax.envs.search.retrieval.retriever import (
    MAX_QUERY_CHARS,
    MAX_TOPK,
    Hit,
    Retriever,
    search_async,
)
from gigpo_jax.envs.search.text import exact_match, format_documents

REWARD = 1.0
START = "Nothing was looked up yet."
NO_ACTION = "That was neither a search nor an answer."
OVER = "The episode is over."


class SearchEnv:
    """An environment of a folder's questions, one episode at a time; see `make`."""

    def __init__(
        self,
        data: str,
        retriever: Retriever,
        *,
        topk: int,
        max_steps: int,
        anchor: str = "information",
        regret: bool = False,
    ) -> None:
        self._data = data
        self._retriever = retriever
        self._topk = topk
        self._max_steps = max_steps
        self._anchor_kind = anchor
        self._regret = regret
        self._question: Question | None = None
        self._anchor = ""
        self._findings: set[str] = set()  # queries with their passages
        self._steps = 0
        self._unseen: set[str] = set()  # titles of gold passages that no search returned
        self._last: StepResult | None = None

    def tasks(self, split: str) -> Sequence[Task]:
        """Returns a split's questions in the order of their files; their type is the data set."""
        check_split(split, SPLITS)
        tasks = []
        for number, question in enumerate(_load_cached_questions(self._data, split)):
            answer = question.golden[0]
            tasks.append(Task(question.id, question.source, split, str(number), answer))
        return tasks

    def digest(self, task: Task) -> str:
        """Hashes the question and its golden answers: a hexadecimal SHA-256 that panels freeze."""
        question = self._find_question(task)
        content = [question.text, question.golden, question.source]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()

    def _find_question(self, task: Task) -> Question:
        questions = _load_cached_questions(self._data, task.split)
        number = int(task.data) if task.data.isascii() and task.data.isdecimal() else -1
        # The id too: the folder may have other questions than when tasks were listed.
        if not 0 <= number < len(questions) or questions[number].id != task.id:
            raise InputError(
                f"is not question {task.data} of {self._data}",
                key="task",
                value=repr(task.id),
                fix="list its tasks again",
            )
        return questions[number]

    def reset(self, task: Task) -> Observation:
        self._question = self._find_question(task)
        self._anchor = self._question.text
        self._findings = set()
        self._steps = 0
        self._unseen = set(self._question.passages)
        observation = self._observe(START)
        self._last = StepResult(observation, 0.0, False, {"won": False, "score": 0.0})
        return observation

    def step(self, action: str) -> StepResult:
        """Acts with an action of `actions.parse_response`.

        After the end it returns the last observation, with reward 0.

        Raises:
          EnvError: no episode was started, or the retriever failed.
        """
        query = self._search_query(action)
        if query is None:
            return self._take_turn(action, [])
        # The search first: if it fails, nothing of the episode has changed.
        return self._take_turn(action, self._retriever.search([query], self._topk)[0])

    async def step_async(self, action: str) -> StepResult:
        """Acts as `step`; other episodes can run during a search."""
        query = self._search_query(action)
        if query is None:
            return self._take_turn(action, [])
        results = await search_async(self._retriever, [query], self._topk)
        return self._take_turn(action, results[0])

    def _search_query(self, action: str) -> str | None:
        """Returns an action's query; None if nothing is searched, as in the last turn."""
        if self._question is None or self._last is None:
            raise EnvError("step before reset: start an episode with reset(task)")
        kind, text = split_action(action)
        runs = kind == "search" and not self._last.done and self._steps + 1 < self._max_steps
        return clean_query(text) if runs else None

    def _take_turn(self, action: str, hits: Sequence[Hit]) -> StepResult:
        """Takes a turn after its search, as a search that failed does not change the episode."""
        # Read again here: `close` may have run while the search was awaited.
        question = self._question
        last = self._last
        if question is None or last is None:
            raise EnvError("step before reset: start an episode with reset(task)")
        if last.done:
            return StepResult(last.observation, 0.0, True, last.info)

        kind, text = split_action(action)
        # A search in the last turn could not be used, so it does not run.
        done = kind == "answer" or self._steps + 1 >= self._max_steps
        won = kind == "answer" and exact_match(text, question.golden)
        unseen_before = len(self._unseen)
        if kind == "search" and not done:
            documents = [hit.document for hit in hits[: self._topk]]
            message = format_documents(documents)
            self._findings.add(f"{clean_query(text)}\n{message}")
            self._anchor = self._make_anchor(question.text, message)
            # Titles, as data sets name gold passages by them.
            self._unseen -= {document.title for document in documents}
        else:
            message = OVER if done else NO_ACTION
        self._steps += 1

        info: dict[str, bool | float] = {"won": won, "score": float(won)}
        # Data sets without gold passages have no regret to tell.
        if self._regret and question.passages:
            info["regret"] = self._measure_regret(question, kind, won, unseen_before)
        self._last = StepResult(self._observe(message), REWARD if won else 0.0, done, info)
        return self._last

    def _make_anchor(self, question: str, message: str) -> str:
        if self._anchor_kind == "state":
            # What is known, in whatever order it was found.
            return "\n".join((question, *sorted(self._findings)))
        return f"{self._anchor}\n{message}" if self._anchor_kind == "information+past" else message

    def _measure_regret(
        self, question: Question, kind: str, won: bool, unseen_before: int
    ) -> float:
        """Counts the surplus turns that the last turn makes necessary.

        An episode needs a search for each gold passage that was not seen, then the answer. After a
        wrong answer it needs all of them again.
        """
        turns_needed = 0
        if not won:
            passages = len(question.passages) if kind == "answer" else len(self._unseen)
            turns_needed = 1 + passages
        # A lucky guess or a lucky search saves turns; that wastes nothing.
        return float(max(0, turns_needed - unseen_before))

    def _observe(self, text: str) -> Observation:
        task = self._question.text if self._question else ""
        return Observation(text, self._anchor, None, task)

    def close(self) -> None:
        """Ends the episode; other environments of the process still use questions and retriever."""
        self._question = None
        self._last = None


def clean_query(text: str) -> str:
    """Returns a query as it is sent: one line of valid UTF-8, cut to the longest allowed."""
    # Twice the limit leaves room for the white space that is removed below.
    valid = text[: 2 * MAX_QUERY_CHARS].encode("utf-8", "replace").decode()
    return " ".join(valid.split())[:MAX_QUERY_CHARS]


# The environments of a worker share their questions, their client and their index.
@functools.lru_cache(maxsize=4)
def _load_cached_questions(data: str, split: str) -> tuple[Question, ...]:
    return load_questions(Path(data), split)


_open_cached_client = functools.lru_cache(maxsize=4)(RetrieverClient)
_open_cached_index = functools.lru_cache(maxsize=2)(open_index)


def make(
    data: str | os.PathLike[str] | None = None,
    *,
    url: str = "",
    topk: int = 3,
    max_steps: int = 4,
    limit_s: float = 45.0,
    anchor: str = "information",
    regret: bool = False,
) -> SearchEnv:
    """Builds the environment; `registry.ENVIRONMENTS` explains its options.

    Raises:
      InputError: an option cannot be used.
    """
    check_whole("config.env.options.topk", topk, 1, MAX_TOPK)
    check_whole("config.env.options.max_steps", max_steps, 1, 1000)
    is_number = isinstance(limit_s, (int, float)) and not isinstance(limit_s, bool)
    if not is_number or not 0 < float(limit_s) <= 3600:
        raise InputError(
            "must be a number of seconds above 0, at most 3600",
            key="config.env.options.limit_s",
            value=repr(limit_s),
        )
    # Questions before the retriever: the index beside them is the default one.
    folder = _find_data(data, url)
    return SearchEnv(
        str(folder.resolve()),
        _open_retriever(folder, url, limit_s),
        topk=topk,
        max_steps=max_steps,
        anchor=anchor,
        regret=regret,
    )


def _find_data(data: str | os.PathLike[str] | None, url: str) -> Path:
    """Returns the folder of questions; by default the synthetic world's."""
    if url and data is None:
        raise InputError(
            "a retriever has no questions",
            key="config.env.options.url",
            value=repr(url),
            fix="name the folder of questions too, as data (docs/search.md)",
        )
    if data is None:
        return generate.ensure_world()
    folder = expand_path("config.env.options.data", data)
    if not folder.is_dir():
        raise InputError(
            "no such folder",
            key="config.env.options.data",
            value=repr(str(data)),
            fix=(
                "give a folder of questions "
                "(docs/search.md describes it), or leave it out for the synthetic world"
            ),
        )
    return folder


def _open_retriever(folder: Path, url: str, limit_s: float) -> Retriever:
    """Opens the client of a URL; without one the index beside the questions."""
    if url:
        return _open_cached_client(url, limit_s=limit_s)
    index_folder = folder / "index"
    if not index_folder.is_dir():
        raise InputError(
            "no retriever",
            key="config.env.options.url",
            value="''",
            fix=f"give the URL of one, or make {index_folder} with gigpo envs search index "
            "(docs/search.md)",
        )
    return _open_cached_index(str(index_folder.resolve()))
