"""Turns a goal formula into sets of facts, so that checking it while playing is a few set comparisons.

Quantifiers are expanded when the game is loaded, over the things that can satisfy the unchanging parts of the formula.
A fact that no sequence of actions can bring about (deleting nothing, as a planner's relaxation does) counts as false,
and so a goal that cannot be reached is found at load: the official engine fails on such a game too.
"""

from collections.abc import Iterator, Set
from typing import TYPE_CHECKING

from gigpo_jax.envs.alfworld.engine import facts as f
from gigpo_jax.envs.alfworld.engine.problem import Expression, Problem
from gigpo_jax.errors import InputError

if TYPE_CHECKING:
    from gigpo_jax.envs.alfworld.engine.game_file import GameFile

MAX_TERMS = 200_000  # of the expanded formula; the goals of genuine games have a few hundred


class Goal:
    """A formula in the form: all of the `needs` hold.

    Attributes:
      needs: each a tuple of alternatives; an alternative is the pair (facts that must hold, facts that must not), or,
        for formulas of unusual shape, a nested Goal.
      predicates: the numbers of the predicates that it depends on; filled for a game's whole goal only.
    """

    __slots__ = ("needs", "predicates")

    def __init__(self, needs: "tuple[tuple[Term, ...], ...]", predicates: frozenset[int] = frozenset()) -> None:
        self.needs = needs
        self.predicates = predicates

    def holds(self, state: Set[int]) -> bool:
        """Whether the goal is reached in a state (a set of fact numbers)."""
        for alternatives in self.needs:
            for term in alternatives:
                if term.holds(state) if isinstance(term, Goal) else (term[0] <= state and term[1].isdisjoint(state)):
                    break
            else:
                return False
        return True


Term = tuple[frozenset[int], frozenset[int]] | Goal


def _predicates(needs: tuple[tuple[Term, ...], ...]) -> Iterator[int]:
    for alternatives in needs:
        for term in alternatives:
            if isinstance(term, Goal):
                yield from _predicates(term.needs)
            else:
                yield from (f.predicate_of(fact) for part in term for fact in part)


TRUE = Goal(())
FALSE = Goal(((),))


def compile_goal(problem: Problem, number: dict[str, int], game: "GameFile") -> Goal:
    """Expands the goal of a problem.

    Args:
      problem: the parsed problem.
      number: thing -> its index.
      game: the game's tables; everything but its goal is already there.

    Raises:
      InputError: the formula is malformed, names what is not there, or can never be reached.
    """
    compiler = _Compiler(problem, number, game)
    compiler.check(problem.goal, frozenset())
    goal = compiler.expand(problem.goal, {})
    if goal is FALSE:
        raise InputError(f"{game.path}: the goal cannot be reached, such a game cannot be played")
    return Goal(goal.needs, frozenset(_predicates(goal.needs)))


class _Compiler:
    """Expands formulas over one problem's things."""

    def __init__(self, problem: Problem, number: dict[str, int], game: "GameFile") -> None:
        self.problem = problem
        self.number = number
        self.game = game
        self.terms = 0
        self.atoms: dict[int, Goal] = {}
        self.known: dict[tuple[str, ...], set[str]] = {}
        self.holdable = {o for r in game.location for o in game.contents.get(r, ())} & game.pickupable | set(game.held)

    def fail(self, message: str) -> InputError:
        return InputError(f"{self.game.path}: in the (:goal section {message}")

    def expand(self, formula: Expression, names: dict[str, str]) -> Goal:
        """A formula under a binding of its variables, as a Goal (TRUE and FALSE are the two constants)."""
        if not formula:
            return TRUE
        head, rest = str(formula[0]), formula[1:]
        if head == "and":
            return _all(self.expand(part, names) for part in self._parts(rest))
        if head == "or":
            return _any(self.expand(part, names) for part in self._parts(rest))
        if head == "not":
            return _negated(self.expand(self._parts(rest)[0], names))
        if head == "imply":
            left, right = self._parts(rest)
            return _any([_negated(self.expand(left, names)), self.expand(right, names)])
        if head in ("exists", "forall"):
            variables, body = self._parts(rest)
            kinds = self._variables(variables)
            if head == "forall":
                return _negated(self._exists(kinds, [["not", body]], names))
            return self._exists(*self._prenex(kinds, body), names)
        return self._atom(head, rest, names)

    def _prenex(self, kinds: dict[str, str], body: Expression) -> tuple[dict[str, str], list[Expression]]:
        """Pulls directly nested `exists` out of a conjunction, as far as their variables have other names."""
        parts: list[Expression] = []
        waiting = [body]
        while waiting:
            part = waiting.pop()
            if part and part[0] == "and":
                waiting += self._parts(part[1:])
                continue
            if part and part[0] == "exists":
                inner, inner_body = self._parts(part[1:])
                more = self._variables(inner)
                if kinds.keys().isdisjoint(more):
                    kinds = {**kinds, **more}
                    waiting.append(inner_body)
                    continue
            parts.append(part)
        return kinds, parts

    def _parts(self, rest: Expression) -> list[Expression]:
        parts = [part for part in rest if isinstance(part, list)]
        if len(parts) != len(rest):
            raise self.fail("a formula is written without parentheses")
        return parts

    def _variables(self, words: Expression) -> dict[str, str]:
        """`?o1 ?o2 - object ?r - receptacle` as variable -> kind."""
        kinds: dict[str, str] = {}
        waiting: list[str] = []
        position = 0
        while position < len(words):
            word = words[position]
            if not isinstance(word, str):
                raise self.fail("a list of variables holds a formula")
            if word == "-":
                kind = words[position + 1] if position + 1 < len(words) else ""
                if not isinstance(kind, str) or kind not in f.KINDS:
                    raise self.fail(f"the type {kind!r} is unknown")
                kinds.update(dict.fromkeys(waiting, kind))
                waiting.clear()
                position += 2
            else:
                waiting.append(word)
                position += 1
        # PDDL's root type has the same name as this domain's `object`, so such a variable ranges over everything.
        kinds.update(dict.fromkeys(waiting, "object"))
        return kinds

    def _exists(self, kinds: dict[str, str], parts: list[Expression], names: dict[str, str]) -> Goal:
        """The disjunction of a conjunction over all bindings of its variables that can make it true."""
        names = {word: thing for word, thing in names.items() if word not in kinds}
        # The unchanging facts choose the bindings, so what they say need not be asked again for each of them.
        static = [part for part in parts if part[0] not in f.FLUENTS and part[0] in f.PREDICATES]
        static = [part for part in static if len({*map(str, part)}) == len(part) and not kinds.keys().isdisjoint(part)]
        rest = [part for part in parts if part not in static]
        return _any(self._bindings(kinds, static, ["and", *rest], names))

    def _bindings(
        self, kinds: dict[str, str], static: list[Expression], rest: Expression, names: dict[str, str]
    ) -> Iterator[Goal]:
        """What is left to ask for under every binding that the unchanging facts allow."""
        variable, candidates = self._narrowest(kinds, static, names)
        others = {other: kind for other, kind in kinds.items() if other != variable}
        for thing in candidates:
            bound = {**names, variable: thing}
            if others:
                yield from self._bindings(others, static, rest, bound)
            else:
                self.terms += 1
                if self.terms > MAX_TERMS:
                    raise self.fail("the formula is too large")
                yield self.expand(rest, bound)

    def _narrowest(
        self, kinds: dict[str, str], static: list[Expression], names: dict[str, str]
    ) -> tuple[str, list[str]]:
        """The variable with the fewest candidates left, by the unchanging facts that are asked for."""
        best: tuple[str, list[str]] | None = None
        for variable, kind in kinds.items():
            found: set[str] | None = None
            for atom in static:
                if variable in atom:
                    matches = self._matches(atom, variable, names)
                    found = matches if found is None else found & matches
            if found is None:
                found = {thing for thing, its in self.problem.kinds.items() if kind in ("object", its)}
            elif kind != "object":
                found = {thing for thing in found if self.problem.kinds[thing] == kind}
            if best is None or len(found) < len(best[1]):
                best = variable, sorted(found)
        if best is None:
            raise self.fail("a quantifier has no variable")
        return best

    def _matches(self, atom: Expression, variable: str, names: dict[str, str]) -> set[str]:
        """The things that the unchanging facts allow for a variable of one atom."""
        wanted = [names.get(word, word) for word in atom if isinstance(word, str)]
        key = (variable, *wanted)
        if key not in self.known:
            self.known[key] = {
                thing
                for arguments in self.problem.facts.get(wanted[0], ())
                if all(want[0] == "?" or want == argument for want, argument in zip(wanted[1:], arguments))
                for want, thing in zip(wanted[1:], arguments)
                if want == variable
            }
        return self.known[key]

    def check(self, formula: Expression, bound: frozenset[str]) -> None:
        """Refuses a formula that is malformed or names what is not there; `bound` are the variables in scope."""
        if not formula:
            return None
        head, rest = formula[0], formula[1:]
        if not isinstance(head, str):
            raise self.fail("an operator is missing")
        if head in ("exists", "forall"):
            if len(rest) != 2:
                raise self.fail(f"({head} ...) needs a list of variables and one formula")
            variables, body = self._parts(rest)
            return self.check(body, bound | self._variables(variables).keys())
        if head in ("and", "or", "not", "imply"):
            if len(rest) != {"not": 1, "imply": 2}.get(head, len(rest)):
                raise self.fail(f"({head} ...) holds {len(rest)} formulas")
            for part in self._parts(rest):
                self.check(part, bound)
            return None
        arity = 2 if head == "=" else len(f.PREDICATES.get(head, ()))
        if not arity:
            raise self.fail(f"({head} ...) is not of the ALFRED domain")
        if len(rest) != arity:
            raise self.fail(f"({head} ...) needs {arity} argument(s)")
        for word in rest:
            if not isinstance(word, str):
                raise self.fail(f"({head} ...) holds a formula")
            if word not in bound and word not in self.number:
                what = "is not bound by a quantifier" if word.startswith("?") else "is not among the objects"
                raise self.fail(f"{word!r} {what}")
        return None

    def _atom(self, predicate: str, rest: Expression, names: dict[str, str]) -> Goal:
        arguments = tuple(names.get(word, word) for word in rest if isinstance(word, str))
        if predicate == "=":
            return TRUE if arguments[0] == arguments[1] else FALSE
        if predicate not in f.FLUENTS:
            return TRUE if arguments in self.problem.facts.get(predicate, ()) else FALSE
        fact = f.code(f.FLUENTS[predicate], *(self.number[thing] for thing in arguments))
        if fact not in self.atoms:
            reachable = fact in self.game.state or self._reachable(fact)
            self.atoms[fact] = Goal((((frozenset((fact,)), frozenset()),),)) if reachable else FALSE
        return self.atoms[fact]

    def _reachable(self, fact: int) -> bool:
        """Whether some action could add a fact, if nothing were ever taken away."""
        game = self.game
        predicate, first, second = f.predicate_of(fact), fact >> 20 & f.MASK, fact & f.MASK
        if predicate == f.AT:
            return second in game.beside
        if predicate == f.OPENED:
            return first in game.openable and first in game.location
        if predicate in (f.HOLDS, f.HOLDS_ANY):
            return second in self.holdable if predicate == f.HOLDS else bool(self.holdable)
        if predicate == f.CHECKED:
            return (
                first in (game.agent, game.start)
                or first in game.location
                or first in game.beside
                or first in self.holdable
            )
        if predicate in (f.ON, f.TOGGLED):
            return first in game.toggleable and self._ever_in(first)
        if predicate == f.IN:
            return first in self.holdable and second in game.location and second in game.accepts.get(first, ())
        if predicate == f.OBJECT_AT:
            accepting = game.accepts.get(first, frozenset())
            return first in self.holdable and not accepting.isdisjoint(game.beside.get(second, ()))
        if predicate == f.SLICED:
            placed = any(f.code(f.OBJECT_AT, first, place) in game.state for place in (*game.beside, game.start))
            placed = placed or (first in self.holdable and not game.accepts[first].isdisjoint(game.location))
            return first in game.sliceable and placed and not game.knives.isdisjoint(self.holdable)
        able, by = {
            f.IS_CLEAN: (game.cleanable, game.washers),
            f.IS_HOT: (game.heatable, game.heaters),
            f.IS_COOL: (game.coolable, game.coolers),
        }[predicate]
        return first in able and first in self.holdable and not by.isdisjoint(game.location)

    def _ever_in(self, thing: int) -> bool:
        """Whether an object can be in a receptacle that one can stand before."""
        game = self.game
        if any(thing in game.contents.get(receptacle, ()) for receptacle in game.location):
            return True
        return thing in self.holdable and not game.accepts.get(thing, frozenset()).isdisjoint(game.location)


def _all(parts: "Iterator[Goal] | list[Goal]") -> Goal:
    """The conjunction; plain conditions of single facts are merged into one term."""
    positive: set[int] = set()
    negative: set[int] = set()
    needs: list[tuple[Term, ...]] = []
    for part in parts:
        if part is FALSE:
            return FALSE
        for alternatives in part.needs:
            term = alternatives[0]
            if len(alternatives) == 1 and not isinstance(term, Goal):
                positive |= term[0]
                negative |= term[1]
            else:
                needs.append(alternatives)
    if positive & negative:
        return FALSE
    if positive or negative:
        needs.insert(0, ((frozenset(positive), frozenset(negative)),))
    return Goal(tuple(needs)) if needs else TRUE


def _any(parts: "Iterator[Goal] | list[Goal]") -> Goal:
    """The disjunction; doubled alternatives are dropped."""
    alternatives: dict[Term, None] = {}
    for part in parts:
        if part is TRUE:
            return TRUE
        if len(part.needs) == 1:
            alternatives.update(dict.fromkeys(part.needs[0]))  # an alternative of alternatives; FALSE has none
        else:
            alternatives[part] = None
    return Goal((tuple(alternatives),)) if alternatives else FALSE


def _negated(goal: Goal) -> Goal:
    """The negation, by De Morgan's rules."""
    if goal is TRUE:
        return FALSE
    if goal is FALSE:
        return TRUE
    return _any(_all(_negated_term(term) for term in alternatives) for alternatives in goal.needs)


def _negated_term(term: Term) -> Goal:
    if isinstance(term, Goal):
        return _negated(term)
    none: frozenset[int] = frozenset()
    single = [(none, frozenset((fact,))) for fact in sorted(term[0])]
    single += [(frozenset((fact,)), none) for fact in sorted(term[1])]
    return Goal((tuple(single),))
