"""WebShop (Yao et al., NeurIPS 2022) in text mode: what the original says, from plain Python and two files.

from gigpo_jax.envs.webshop import Session, open_catalogue

session = Session(open_catalogue(DIR, goals="human", draw_seed=42))
page = session.reset(0)
page = session.step("search[red shoes]")     # page.text, page.available, page.reward, page.done
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gigpo_jax.envs.webshop.engine.catalogue import Catalogue, open_catalogue
    from gigpo_jax.envs.webshop.engine.session import Page, Session

__all__ = ["Catalogue", "Page", "Session", "open_catalogue"]
_HOMES = {"Catalogue": "catalogue", "open_catalogue": "catalogue", "Page": "session", "Session": "session"}


def __getattr__(name: str) -> Any:
    """Imports what is asked for, so that the commands of this package start without it."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.engine.{_HOMES[name]}"), name)
