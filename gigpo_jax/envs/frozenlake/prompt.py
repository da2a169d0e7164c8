"""Prompts of FrozenLake."""

from gigpo_jax.env_bridge.instructions import TAGGED_THOUGHT, Instruct

# A cell of the observation; the agent's own cell has one of the three last letters.
ICE, HOLE, GOAL, AGENT, AGENT_IN_HOLE, AGENT_AT_GOAL = "_OGPX√"
INTRO = (
    "You walk over a frozen lake to a goal. Moves: left, down, right, up, one cell each; at the "
    f"edge you stay. A hole ends the game. Cells: {AGENT} you, {ICE} ice, {HOLE} hole, {GOAL} "
    f"goal, {AGENT_IN_HOLE} you in a hole, {AGENT_AT_GOAL} you at the goal."
)
SLIPPERY = (
    " The ice may be slippery: then a third of your moves goes where you want, and a third to "
    "either side of it."
)
FULL = Instruct(INTRO + SLIPPERY)
TAGGED = Instruct(INTRO + SLIPPERY, thought=TAGGED_THOUGHT)
