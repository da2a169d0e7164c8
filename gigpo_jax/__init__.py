"""GiGPO in JAX: reinforcement learning for LLM agents in multi-turn text environments."""

__version__ = "0.2.0"
