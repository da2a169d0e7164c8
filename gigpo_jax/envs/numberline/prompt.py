"""The prompt and the actions of NumberLine."""

from gigpo_jax.envs.cards.prompt import Rules

ACTIONS = ("-", "+")
RULES = Rules(
    'You play NumberLine. "+" adds one to the current number, "-" takes one away; it stays '
    "between 0 and 5. Bring the current number to the target number. Reward 1 at the target, -1 "
    "for a move that does not bring it nearer.",
    ACTIONS,
    (
        ("current number", "the number"),
        ("target number", "the number"),
        ("thoughts", "what follows from them"),
    ),
)
