"""Sokoban: boxes are pushed onto targets. `Room` is the engine alone."""

from gigpo_jax.envs.sokoban.engine.room import Room

__all__ = ["Room"]
