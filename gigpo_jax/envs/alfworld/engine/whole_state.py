"""The whole state of a game in words, for `env.anchor=state`."""

from gigpo_jax.envs.alfworld.engine import facts as f
from gigpo_jax.envs.alfworld.engine.game import Game, join_words

# Words of the facts in `describe_state`. The place stands there by name.
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


def describe_state(game: Game) -> str:
    """Describes the place and all changes since the start, a line each.

    Equal texts of one game have equal futures: the same commands lead to the same admissible
    commands, feedback and rewards.
    """
    file = game.file
    place = join_words([file.names[receptacle] for receptacle in file.beside.get(game.place, ())])
    lines = [f"at {place or 'the start'}"]
    # Deleted facts IN stay deleted for `look` where an object went through a third receptacle.
    for fact in sorted((game.state ^ file.state) | game.deleted_contents):
        predicate = _STATE_WORDS.get(f.get_predicate(fact))
        if predicate is None:
            continue
        words = [predicate, file.names[f.get_first(fact)]]
        if f.get_predicate(fact) in _BINARY_PREDICATES:
            words.append(file.names[f.get_second(fact)])
        if fact not in game.state:
            words.insert(0, "not")
        lines.append(" ".join(words))
    return "\n".join(lines)
