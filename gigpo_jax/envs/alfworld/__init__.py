"""ALFWorld: household text games, with a native engine and the official one."""

from gigpo_jax.envs.alfworld.engine.game import Game, GameStep

__all__ = ["Game", "GameStep"]
