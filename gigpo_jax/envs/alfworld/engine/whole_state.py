"""The whole state of a game in words, for `env.anchor=state`."""

from collections.abc import Set

from gigpo_jax.envs.alfworld.engine import facts as f
from gigpo_jax.envs.alfworld.engine.game_file import GameFile

# Words of the facts in `describe_changes`. The place stands there by name.
_STATE_WORDS = {
    f.OBJECT_AT: "at",
    f.OPENED: "open",
    f.IN: "in",
    f.HOLDS: "holds",
    f.HOLDS_ANY: "holds",
    f.IS_CLEAN: "clean",
    f.IS_HOT: "hot",
    f.IS_COOL: "cool",
    f.TOGGLED: "used",
    f.SLICED: "sliced",
}
_BINARY_PREDICATES = frozenset((f.OBJECT_AT, f.IN, f.HOLDS))


def describe_changes(file: GameFile, state: Set[int], deleted_contents: Set[int]) -> list[str]:
    """Describes all changes since the start, a line each; see `Game.describe_state`."""
    # Deleted facts IN stay deleted for `look` where an object went through a third receptacle.
    facts = (state ^ file.state) | deleted_contents
    lines = []
    for fact in sorted(facts):
        predicate = _STATE_WORDS.get(f.get_predicate(fact))
        if predicate is None:
            continue
        words = [predicate, file.names[f.get_first(fact)]]
        if f.get_predicate(fact) in _BINARY_PREDICATES:
            words.append(file.names[f.get_second(fact)])
        if fact not in state:
            words.insert(0, "not")
        lines.append(" ".join(words))
    return lines
