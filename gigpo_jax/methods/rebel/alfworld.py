"""Beliefs that a policy states of a house of ALFWorld, graded by what observations have shown.

The grades are from ReBel's code (arXiv 2605.20061), with its numbers. Departures, all ours:

- A belief is compared with what the policy has seen when it states it. The code compares it with
  what it sees after its action, also the phase.
- The tracker of facts is ALFWorld's `Beliefs`. So a taken object is in the hand and nowhere else,
  and a heated object is "heated", as beliefs have it; the code looks for "hot" there.
- Names are compared whole, not as parts of each other, and the JSON object has no sub-objects.
- There is no phase "done": nothing that was seen before the last action is done. There is no
  milder grade of the first step either.
- In predictions all words without meaning of their own are left out, by a list of ours, and
  short words count.
"""

import itertools
import json
import re
from collections.abc import Collection, Mapping
from typing import Any

from gigpo_jax.env_bridge.types import Observation
from gigpo_jax.envs.alfworld.expert.beliefs import Beliefs
from gigpo_jax.envs.alfworld.expert.demonstrator import Demonstrator
from gigpo_jax.envs.alfworld.tasks import Goal
from gigpo_jax.methods.rebel.graders import GradedBeliefs

BELIEFS = GradedBeliefs(
    "First write what you know of the house, as one JSON object between <belief> and </belief>, "
    'with these keys: "objects": each object and its place, in_hand or unknown; "states": each '
    "object that was changed, and heated, cooled or cleaned; "
    '"visited" and "unvisited": lists of the places that you have looked into, and of others that '
    'may help; "phase": find, pickup, transform or place; "target": the object that you need now; '
    '"prediction": what you expect to see after your action. Then reason about it between <think> '
    "and </think>. ",
    "gigpo_jax.methods.rebel.alfworld:HouseGrader",
)
IN_HAND = "in_hand"
_STATES = {"clean": "cleaned", "heat": "heated", "cool": "cooled"}
# Shares of objects, states, visited and unvisited places in the grade of the state.
_SHARES = (0.35, 0.25, 0.25, 0.15)
_ARTICLE = re.compile(r"\b(?:a|an|the)\b")
_PREPOSITION = re.compile(r"^(?:(?:in|on|at) (?!hand$))?(?:the )?")
_WORD = re.compile(r"[a-z0-9]+")
_EMPTY_WORD = re.compile(
    "a|an|and|are|at|be|can|do|from|go|have|i|if|in|is|it|its|of|on|or|see|that|the|then|there|this|"
    "to|was|will|with|you|your"
)


def name_phase(commands: Collection[str], *, holds: bool) -> str:
    """The phase in which these commands are admissible."""

    def lists(*verbs: str) -> bool:
        return any(command.startswith(verbs) for command in commands)

    if lists("heat ", "cool ", "clean "):
        return "transform"
    if holds and lists("move ", "put "):
        return "place"
    return "pickup" if lists("take ") else "find"


class HouseGrader:
    """Grades the beliefs of an episode; see `graders.BeliefGrader`."""

    def __init__(self) -> None:
        self._facts = Beliefs("")
        self._is_first = True
        self._phase = ""
        self._belief: Mapping[str, Any] = {}

    def observe(self, observation: Observation) -> None:
        """Reads an observation."""
        if self._is_first:
            self._facts = Beliefs(observation.text)
            self._is_first = False
        self._facts.update(observation)
        commands = observation.admissible or ()
        self._phase = name_phase(commands, holds=bool(self._facts.held))

    def grade(self, belief: Mapping[str, Any], feedback: str) -> tuple[float, float, float]:
        """Grades state, phase and prediction."""
        self._belief = belief
        state = grade_facts(belief, self._facts)
        phase = float(_find_words(belief, "phase") == self._phase)
        return state, phase, grade_expectation(_find_words(belief, "prediction"), feedback)

    def make_key(self) -> str:
        """Key of equal beliefs: phase of the commands, target, a full hand, a changed object."""
        objects = _name_pairs(self._belief, "objects")
        target = _ARTICLE.sub("", _find_words(self._belief, "target"))
        words = (
            self._phase,
            " ".join(_WORD.findall(target)),
            "holding" if _plain_name(IN_HAND) in objects.values() else "",
            "changed" if _name_pairs(self._belief, "states") else "",
        )
        return "|".join(words)


def grade_facts(belief: Mapping[str, Any], facts: Beliefs) -> float:
    """Grades objects, states and places, from 0 to 1."""
    places: dict[str, set[str]] = {}
    for receptacle, things in facts.contents.items():
        for thing in things:
            places.setdefault(thing, set()).add(receptacle)
    if facts.held:
        places[facts.held] = {_plain_name(IN_HAND)}
    states: dict[str, set[str]] = {}
    for verb, things in facts.changed.items():
        for thing in things:
            states.setdefault(thing, set()).add(_STATES[verb])
    visited = {*facts.contents}
    unvisited = {*facts.receptacles} - visited
    grades = (
        _grade_pairs(_name_pairs(belief, "objects"), places),
        _grade_pairs(_name_pairs(belief, "states"), states),
        _grade_seen_places(_name_set(belief, "visited"), visited),
        _grade_unseen_places(_name_set(belief, "unvisited"), visited, unvisited),
    )
    return sum(share * grade for share, grade in zip(_SHARES, grades, strict=True))


def _grade_pairs(stated: Mapping[str, str], known: Mapping[str, set[str]]) -> float:
    """Counts contradictions and missing facts; what nobody knows yet is no error."""
    if not stated:
        return 0.0 if known else 0.5
    if not known:
        return 0.7
    errors = len(known.keys() - stated.keys())
    for name, value in stated.items():
        # Everybody knows what is in the hand.
        errors += value not in known.get(name, {value} - {_plain_name(IN_HAND)})
    return max(0.0, 1.0 - errors / len(known))


def _grade_seen_places(stated: set[str], visited: set[str]) -> float:
    """F1 of visited places, less 0.1 for each wrong one."""
    if not stated or not visited:
        return 0.3 if stated or visited else 0.6
    hits = len(stated & visited)
    f1 = 2 * hits / (len(stated) + len(visited))
    return max(0.0, f1 - 0.1 * (len(stated) - hits))


def _grade_unseen_places(stated: set[str], visited: set[str], unvisited: set[str]) -> float:
    if not stated:
        return 0.4 if unvisited else 0.8
    return 1.0 - len(stated & visited) / len(stated)


def grade_expectation(prediction: str, feedback: str) -> float:
    """Share of the words and word pairs of a prediction that the feedback has.

    Only words after "I expect" count, if the prediction has it.
    """
    _, marker, rest = prediction.partition("i expect")
    expected = _meaningful_words(rest if marker else prediction)
    observed = _meaningful_words(feedback.lower())
    # A number alone says nothing: numbers of names are in pairs.
    words = [word for word in expected if not word.isdigit()]
    hits = sum(word in observed for word in words)
    pairs = [*itertools.pairwise(expected)]
    observed_pairs = {*itertools.pairwise(observed)}
    hits += sum(pair in observed_pairs for pair in pairs)
    return hits / max(len(words) + len(pairs), 1)


def _meaningful_words(text: str) -> list[str]:
    return [word for word in _WORD.findall(text) if not _EMPTY_WORD.fullmatch(word)]


def _plain_name(text: str) -> str:
    """Name of an object or place: "in hand" for "in_hand", "cabinet 1" for "On Cabinet 1"."""
    name = " ".join(text.lower().replace("_", " ").split())
    return _PREPOSITION.sub("", name)


def _find_value(belief: Mapping[str, Any], key: str) -> Any:
    # Tokenizers of words put spaces around a key.
    return next((value for name, value in belief.items() if name.strip() == key), None)


def _find_words(belief: Mapping[str, Any], key: str) -> str:
    value = _find_value(belief, key)
    return " ".join(value.lower().split()) if isinstance(value, str) else ""


def _name_pairs(belief: Mapping[str, Any], key: str) -> dict[str, str]:
    value = _find_value(belief, key)
    pairs = value.items() if isinstance(value, dict) else ()
    return {_plain_name(name): _plain_name(text) for name, text in pairs if isinstance(text, str)}


def _name_set(belief: Mapping[str, Any], key: str) -> set[str]:
    value = _find_value(belief, key)
    names = value if isinstance(value, list) else ()
    return {_plain_name(name) for name in names if isinstance(name, str)}


def read_demonstrator(expert: Demonstrator, observation: Observation, command: str) -> str:
    """The belief of an expert before a command, as JSON."""
    goal = expert.expert.goal
    facts = expert.expert.beliefs
    if goal is None or facts is None:
        return ""
    return write_house_belief(goal, facts, observation, command)


def write_house_belief(goal: Goal, facts: Beliefs, observation: Observation, command: str) -> str:
    """A true belief before a command, as JSON."""
    objects = {
        thing: receptacle
        for receptacle in facts.receptacles
        for thing in sorted(facts.contents.get(receptacle, ()))
    }
    if facts.held:
        objects[facts.held] = IN_HAND
    states = {
        thing: _STATES[verb] for verb, things in facts.changed.items() for thing in sorted(things)
    }
    visited = [name for name in facts.receptacles if name in facts.contents]
    belief = {
        "objects": objects,
        "states": states,
        "visited": visited,
        "unvisited": [name for name in facts.receptacles if name not in facts.contents],
        "phase": name_phase(observation.admissible or (), holds=bool(facts.held)),
        "target": goal.object if not goal.lamp or not facts.held else goal.lamp,
        # Whatever comes of it, the answer names the things of the command.
        "prediction": f"I expect {command.partition(' ')[2].removeprefix('to ')}",
    }
    return json.dumps(belief)
