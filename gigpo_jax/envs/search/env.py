"""Search-augmented question answering: `registry.make("search")`, with nothing downloaded.

A turn is a search or an answer. An episode ends with an answer or after the fourth turn, so at most three searches run.
Reward 1 for an exact match.

The published description leaves open, and this environment decides: a response that is neither uses a turn and keeps
the anchor; a search in the last turn does not run.
"""

import functools
import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

from gigpo_jax.env_bridge.base import check_whole
from gigpo_jax.env_bridge.paths import filled_in
from gigpo_jax.env_bridge.types import EnvError, Observation, StepResult, Task
from gigpo_jax.envs.search.actions import split_action
from gigpo_jax.envs.search.data import generate
from gigpo_jax.envs.search.data.world import SPLITS
from gigpo_jax.envs.search.questions import Question, load_questions
from gigpo_jax.envs.search.retrieval.bm25_index import open_index
from gigpo_jax.envs.search.retrieval.client import RetrieverClient
from gigpo_jax.envs.search.retrieval.retriever import MAX_QUERY_CHARS, MAX_TOPK, Hit, Retriever, search_async
from gigpo_jax.envs.search.text import exact_match, information
from gigpo_jax.errors import InputError

REWARD = 1.0
ANCHORS = ("information", "information+past")
START = "Nothing was looked up yet."
NO_ACTION = "That was neither a search nor an answer."
OVER = "The episode is over."


class SearchEnv:
    """Plays the questions of a folder, one episode at a time. See `make`."""

    def __init__(
        self,
        data: str,
        retriever: Retriever,
        *,
        topk: int,
        max_steps: int,
        document_chars: int,
        anchor: str = "information",
        regret: bool = False,
    ) -> None:
        self._data, self._retriever = data, retriever
        self._past_in_anchor, self._regret = anchor == "information+past", regret
        self._topk, self._max_steps, self._document_chars = topk, max_steps, document_chars
        self._question: Question | None = None
        self._anchor, self._steps = "", 0
        self._unseen: set[str] = set()
        self._last: StepResult | None = None

    def tasks(self, split: str) -> Sequence[Task]:
        """The questions of a split in the order of their files; their type is the data set."""
        if split not in SPLITS:
            raise InputError(f"config.env.split={split!r}: search has the splits {' and '.join(SPLITS)}")
        questions = _questions(self._data, split)
        return [Task(q.id, q.source, split, str(n), q.golden[0]) for n, q in enumerate(questions)]

    def digest(self, task: Task) -> str:
        """SHA-256 of the question and its golden answers, in hexadecimal; panels freeze it."""
        question = self._find(task)
        what = [question.text, question.golden, question.source]
        return hashlib.sha256(json.dumps(what).encode()).hexdigest()

    def _find(self, task: Task) -> Question:
        questions = _questions(self._data, task.split)
        number = int(task.data) if task.data.isascii() and task.data.isdecimal() else -1
        if not 0 <= number < len(questions) or questions[number].id != task.id:
            raise InputError(f"task={task.id!r}: is not question {task.data} of {self._data}; list its tasks again")
        return questions[number]

    def reset(self, task: Task) -> Observation:
        self._question = self._find(task)
        self._anchor, self._steps, self._unseen = self._question.text, 0, set(self._question.passages)
        observation = self._observe(START)
        self._last = StepResult(observation, 0.0, False, {"won": False, "score": 0.0})
        return observation

    def step(self, action: str) -> StepResult:
        """Acts with an action of `actions.parse`; after the end it returns the last observation, with reward 0.

        Raises:
          EnvError: no episode was started, or the retriever failed.
        """
        query = self._query(action)
        return self._advance(action, [] if query is None else self._retriever.search([query], self._topk)[0])

    async def step_async(self, action: str) -> StepResult:
        """As `step`; other episodes can run during a search."""
        query = self._query(action)
        if query is None:
            return self._advance(action, [])
        return self._advance(action, (await search_async(self._retriever, [query], self._topk))[0])

    def _query(self, action: str) -> str | None:
        """The query of an action; None if nothing is to be searched, as in the last turn."""
        if self._question is None or self._last is None:
            raise EnvError("step before reset: start an episode with reset(task)")
        kind, text = split_action(action)
        runs = kind == "search" and not self._last.done and self._steps + 1 < self._max_steps
        return one_line(text) if runs else None

    def _advance(self, action: str, found: Sequence[Hit]) -> StepResult:
        """Takes a turn after its search; a search that failed does not change the episode."""
        question, last = self._question, self._last
        if question is None or last is None:
            raise EnvError("step before reset: start an episode with reset(task)")
        if last.done:
            return StepResult(last.observation, 0.0, True, last.info)
        kind, text = split_action(action)
        ends = kind == "answer" or self._steps + 1 >= self._max_steps
        won = kind == "answer" and exact_match(text, question.golden)
        before = len(self._unseen)
        if kind == "search" and not ends:
            documents = [hit.document for hit in found[: self._topk]]
            shown = information(documents, document_chars=self._document_chars)
            self._anchor = f"{self._anchor}\n{shown}" if self._past_in_anchor else shown
            self._unseen -= {document.title for document in documents}
        else:
            shown = OVER if ends else NO_ACTION
        self._steps += 1
        info: dict[str, bool | float] = {"won": won, "score": float(won)}
        if self._regret and question.passages:
            # a search for each gold passage that was not seen, then the answer; after a wrong answer all over again
            needed = 0 if won else 1 + len(question.passages if kind == "answer" else self._unseen)
            info["regret"] = float(max(0, needed - before))  # a lucky guess and a lucky search waste nothing
        self._last = StepResult(self._observe(shown), REWARD if won else 0.0, ends, info)
        return self._last

    def _observe(self, text: str) -> Observation:
        return Observation(text, self._anchor, None, self._question.text if self._question else "")

    def close(self) -> None:
        """Ends the episode; other environments of the process still use questions and retriever."""
        self._question = self._last = None


def one_line(text: str) -> str:
    """A query as it is sent: one line of valid UTF-8, cut to the longest that is allowed."""
    return " ".join(text[: 2 * MAX_QUERY_CHARS].encode("utf-8", "replace").decode().split())[:MAX_QUERY_CHARS]


@functools.lru_cache(maxsize=4)  # the environments of a worker share their questions
def _questions(data: str, split: str) -> tuple[Question, ...]:
    return load_questions(Path(data), split)


_client = functools.lru_cache(maxsize=4)(RetrieverClient)  # the environments of a worker share their retriever
_local = functools.lru_cache(maxsize=2)(open_index)


def make(
    data: str | os.PathLike[str] | None = None,
    *,
    url: str = "",
    index: str = "",
    topk: int = 3,
    max_steps: int = 4,
    document_chars: int = 4000,
    timeout_s: float = 10.0,
    limit_s: float = 45.0,
    anchor: str = "information",
    regret: bool = False,
) -> SearchEnv:
    """Builds the environment; `registry.ENVIRONMENTS` explains its options. InputError for one that cannot be used."""
    check_whole("config.env.options.topk", topk, 1, MAX_TOPK)
    check_whole("config.env.options.max_steps", max_steps, 1, 1000)
    check_whole("config.env.options.document_chars", document_chars, 1, 10**6)
    if anchor not in ANCHORS:
        raise InputError(f"config.env.options.anchor={anchor!r}: choose one of {', '.join(ANCHORS)}")
    for name, seconds in (("timeout_s", timeout_s), ("limit_s", limit_s)):
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds <= 3600:
            raise InputError(f"config.env.options.{name}={seconds!r}: give a number of seconds above 0, at most 3600")
    if url and data is None:
        raise InputError(f"config.env.options.url={url!r}: name the folder of questions too, as data; docs/search.md")
    folder = filled_in("config.env.options.data", data) if data is not None else generate.ensure_world()
    if not folder.is_dir():
        raise InputError(
            f"config.env.options.data={str(data)!r}: no such folder; give a folder of questions (docs/search.md "
            "describes it), or leave it out for the synthetic world"
        )
    index = str(filled_in("config.env.options.index", index)) if index else ""
    if not url and not index:
        index = str(folder / "index")
        if not Path(index).is_dir():
            raise InputError(
                "config.env.options.url='', config.env.options.index='': no retriever; give the URL of one, or an "
                f"index folder, or make {index} with python -m gigpo_jax.envs search index (docs/search.md)"
            )
    if url and index:
        raise InputError(f"config.env.options.url={url!r}, config.env.options.index={index!r}: give one of them")
    retriever: Retriever = (
        _client(url, timeout_s=timeout_s, limit_s=limit_s) if url else _local(str(Path(index).resolve()))
    )
    return SearchEnv(
        str(folder.resolve()),
        retriever,
        topk=topk,
        max_steps=max_steps,
        document_chars=document_chars,
        anchor=anchor,
        regret=regret,
    )
