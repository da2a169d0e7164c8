"""An expert that knows the sentences of the synthetic world, but sees observations alone.

It can err on purpose.
"""

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass

from gigpo_jax.env_bridge.option_checks import check_fractions
from gigpo_jax.env_bridge.types import Observation

MAX_STEPS = 4  # turns of an episode; the last one is an answer
_NAME = re.compile(r"[A-Z][a-z]+(?: (?:of )?[A-Z][a-z]+)+")


@dataclass(frozen=True)
class _Relation:
    """How passages state a fact, and how it is searched."""

    fact: str  # pattern, {} for the subject; its group is the answer
    query: str  # what to search for, {} for the subject
    words: str  # the answer in words, {} for the subject


RELATIONS: Mapping[str, _Relation] = {
    "born": _Relation(
        r"{} was born in (.+?) in \d", "{} was born in", "the town where {} was born"
    ),
    "trade": _Relation(
        r"{} was born in .+? in \d+ and worked as a (\w+)", "{} worked as", "what {} worked as"
    ),
    "river": _Relation(r"{} is a town on the (.+?)\.", "{} is a town on the", "the river of {}"),
    "author": _Relation(
        r"{} is a book of \d+ pages by (.+?)\.", "{} is a book by", "the author of {}"
    ),
    "founder": _Relation(
        r"{} was founded by (.+?) in \d", "{} was founded by", "the founder of {}"
    ),
    "place": _Relation(
        r"{} was founded by .+? in \d+\. It trades in (.+?)\.", "{} trades in", "where {} trades"
    ),
}
# Pattern of a question -> the relations from its subject to the answer; the first match counts.
_QUESTIONS = (
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


def parse_relations(question: str) -> tuple[str, list[str]]:
    """Returns a question's subject and the relations to follow; (question, []) if unknown."""
    for pattern, relations in _QUESTIONS:
        match = re.fullmatch(pattern, question)
        if match is not None:
            return match.group(1), list(relations)
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
    ) -> None:
        check_fractions(
            blind_fraction=blind_fraction,
            vague_fraction=vague_fraction,
            hasty_fraction=hasty_fraction,
        )
        self._random = random.Random(seed)
        self._blind_fraction = blind_fraction
        self._vague_fraction = vague_fraction
        self._hasty_fraction = hasty_fraction
        self._remaining_steps = MAX_STEPS
        self._subject = ""
        self._relations: list[str] = []
        self._started = False
        self.thought = ""  # the reason for the last action, in words

    def act(self, observation: Observation) -> str:
        if not self._started:
            self._subject, self._relations = parse_relations(observation.task)
            self._started = True
            if self._random.random() < self._blind_fraction:
                return f"<answer>{self._subject}</answer>"
        self._remaining_steps -= 1
        searched = "<information>" in observation.text
        self.thought = self._follow_relations(observation.text)
        if not self._relations or not self._remaining_steps:
            self.thought += "That is the answer."
            # Without a search the subject is still the question's own, never its answer.
            answer = self._subject if searched else "unknown"
            return f"<answer>{answer}</answer>"
        if searched and self._random.random() < self._hasty_fraction:
            names = _NAME.findall(observation.text)
            answer = self._random.choice(names) if names else self._subject
            return f"<answer>{answer}</answer>"
        subject = self._subject
        if self._random.random() < self._vague_fraction:
            # One word of a name is shared by many entities, so wrong passages come back.
            subject = self._random.choice(subject.split())
        relation = RELATIONS[self._relations[0]]
        self.thought += f"I need to know {relation.words.format(self._subject)}. I search for that."
        return f"<search>{relation.query.format(subject)}</search>"

    def _follow_relations(self, text: str) -> str:
        """Follows the relations whose facts the text has.

        Returns them in words.
        """
        thought = ""
        # A block may hold the facts of two hops at once.
        while self._relations:
            relation = RELATIONS[self._relations[0]]
            match = re.search(relation.fact.replace("{}", re.escape(self._subject)), text)
            if match is None:
                break
            fact = match.group(1)
            thought += f"I found {relation.words.format(self._subject)}: {fact}. "
            self._subject = fact
            self._relations.pop(0)
        return thought
