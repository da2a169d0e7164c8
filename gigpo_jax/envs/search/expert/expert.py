"""An expert that knows the sentences of the synthetic world, and uses observations alone. It can err on purpose."""

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass

from gigpo_jax.env_bridge.base import check_fractions
from gigpo_jax.env_bridge.types import Observation

_NAME = re.compile(r"[A-Z][a-z]+(?: (?:of )?[A-Z][a-z]+)+")


@dataclass(frozen=True)
class _Relation:
    """How passages state a fact, and how to search for it."""

    fact: str  # pattern, {} for the subject; its group is the answer
    query: str  # of the search, {} for the subject


RELATIONS: Mapping[str, _Relation] = {
    "born": _Relation(r"{} was born in (.+?) in \d", "{} was born in"),
    "trade": _Relation(r"{} was born in .+? in \d+ and worked as a (\w+)", "{} worked as"),
    "river": _Relation(r"{} is a town on the (.+?)\.", "{} is a town on the"),
    "author": _Relation(r"{} is a book of \d+ pages by (.+?)\.", "{} is a book by"),
    "founder": _Relation(r"{} was founded by (.+?) in \d", "{} was founded by"),
    "place": _Relation(r"{} was founded by .+? in \d+\. It trades in (.+?)\.", "{} trades in"),
}
# Pattern of a question -> the relations from its subject to the answer; the first match counts.
_PLANS = (
    (r"In which town was the author of (.+) born\?", ("author", "born")),
    (r"In which town was the founder of (.+) born\?", ("founder", "born")),
    (r"In which town was (.+) born\?", ("born",)),
    (r"What did (.+) work as\?", ("trade",)),
    (r"On which river lies the town where (.+) was born\?", ("born", "river")),
    (r"On which river lies the town where (.+) trades\?", ("place", "river")),
    (r"On which river lies (.+)\?", ("river",)),
    (r"Who wrote (.+)\?", ("author",)),
    (r"Who founded (.+)\?", ("founder",)),
)


def plan(question: str) -> tuple[str, list[str]]:
    """The subject of a question and the relations to follow; any other question is its own subject."""
    for pattern, relations in _PLANS:
        found = re.fullmatch(pattern, question)
        if found is not None:
            return found.group(1), list(relations)
    return question, []


class SearchExpert:
    """Plays one episode; `registry.ENVIRONMENTS` explains its options."""

    def __init__(
        self,
        seed: int = 0,
        *,
        blind_fraction: float = 0.0,
        vague_fraction: float = 0.0,
        hasty_fraction: float = 0.0,
        max_steps: int = 4,
    ) -> None:
        check_fractions(blind_fraction=blind_fraction, vague_fraction=vague_fraction, hasty_fraction=hasty_fraction)
        self._random = random.Random(seed)
        self._blind, self._vague, self._hasty, self._left = blind_fraction, vague_fraction, hasty_fraction, max_steps
        self._subject, self._relations, self._started = "", list[str](), False

    def act(self, observation: Observation) -> str:
        if not self._started:
            self._subject, self._relations = plan(observation.task)
            self._started = True
            if self._random.random() < self._blind:
                return f"<answer>{self._subject}</answer>"
        self._left -= 1
        searched = "<information>" in observation.text
        self._read(observation.text)
        if not self._relations or not self._left:
            known = self._subject if searched else "unknown"
            return f"<answer>{known}</answer>"
        if searched and self._random.random() < self._hasty:
            names = _NAME.findall(observation.text)
            return f"<answer>{self._random.choice(names) if names else self._subject}</answer>"
        subject = self._subject
        if self._random.random() < self._vague:
            subject = self._random.choice(subject.split())
        return f"<search>{RELATIONS[self._relations[0]].query.format(subject)}</search>"

    def _read(self, text: str) -> None:
        """Follows the relations whose facts are in the text."""
        while self._relations:
            fact = RELATIONS[self._relations[0]].fact.replace("{}", re.escape(self._subject))
            found = re.search(fact, text)
            if found is None:
                return
            self._subject = found.group(1)
            self._relations.pop(0)
