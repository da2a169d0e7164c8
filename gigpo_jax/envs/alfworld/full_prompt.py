"""Prompts of ALFWorld for language models."""

from dataclasses import replace

from gigpo_jax.env_bridge.instructions import TAGGED_THOUGHT, Instruct

FULL = Instruct(
    intro="You are in a house that is simulated in text, and you act in it by short commands.",
    hidden=("help",),
)
TAGGED = replace(FULL, thought=TAGGED_THOUGHT)
