"""ALFWorld: household text games, played by our own engine or by the official one."""

from gigpo_jax.envs.alfworld.engine.game import Game, Step

__all__ = ["Game", "Step"]
