"""GiGPO in JAX: reinforcement learning for LLM agents in multi-turn text environments.

with gigpo_jax.load("runs/quickstart/export") as model:
    print(*model.generate("What is in the drawer?"))
"""

from typing import Any

__version__ = "0.2.0"


def __getattr__(name: str) -> Any:
    """Imports `load` on first use, so that environments and tokenizers do not import jax."""
    if name == "load":
        from gigpo_jax.engines.text_model import TextModel

        return TextModel
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
