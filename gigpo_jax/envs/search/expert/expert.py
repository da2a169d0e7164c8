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
    words: str  # the answer in words, {} for the subject


RELATIONS: Mapping[str, _Relation] = {
    "born": _Relation(r"{} was born in (.+?) in \d", "{} was born in", "the town where {} was born"),
    "trade": _Relation(r"{} was born in .+? in \d+ and worked as a (\w+)", "{} worked as", "what {} worked as"),
    "river": _Relation(r"{} is a town on the (.+?)\.", "{} is a town on the", "the river of {}"),
    "author": _Relation(r"{} is a book of \d+ pages by (.+?)\.", "{} is a book by", "the author of {}"),
    "founder": _Relation(r"{} was founded by (.+?) in \d", "{} was founded by", "the founder of {}"),
    "place": _Relation(r"{} was founded by .+? in \d+\. It trades in (.+?)\.", "{} trades in", "where {} trades"),
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
        self.thought = ""  # the reason for the last action, in words

    def act(self, observation: Observation) -> str:
        if not self._started:
            self._subject, self._relations = plan(observation.task)
            self._started = True
            if self._random.random() < self._blind:
                return f"<answer>{self._subject}</answer>"
        self._left -= 1
        searched = "<information>" in observation.text
        self.thought = self._read(observation.text)
        if not self._relations or not self._left:
            self.thought += "That is the answer."
            known = self._subject if searched else "unknown"
            return f"<answer>{known}</answer>"
        if searched and self._random.random() < self._hasty:
            names = _NAME.findall(observation.text)
            return f"<answer>{self._random.choice(names) if names else self._subject}</answer>"
        subject = self._subject
        if self._random.random() < self._vague:
            subject = self._random.choice(subject.split())
        relation = RELATIONS[self._relations[0]]
        self.thought += f"I need to know {relation.words.format(self._subject)}. I search for that."
        return f"<search>{relation.query.format(subject)}</search>"

    def _read(self, text: str) -> str:
        """Follows the relations whose facts are in the text; returns what was found, in words."""
        said = ""
        while self._relations:
            relation = RELATIONS[self._relations[0]]
            found = re.search(relation.fact.replace("{}", re.escape(self._subject)), text)
            if found is None:
                break
            said += f"I found {relation.words.format(self._subject)}: {found.group(1)}. "
            self._subject = found.group(1)
            self._relations.pop(0)
        return said
