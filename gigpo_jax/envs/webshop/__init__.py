"""WebShop (Yao et al., NeurIPS 2022) in text mode, in plain Python.

Its text is identical to the original's.

session = Session(open_catalogue(DIR, goals="human", draw_seed=42))
page = session.reset(0)
page = session.step("search[red shoes]")     # page.text, page.available, page.reward, page.done
"""

from gigpo_jax.envs.webshop.catalogue.catalogue import Catalogue, open_catalogue
from gigpo_jax.envs.webshop.engine.session import Page, Session

__all__ = ["Catalogue", "Page", "Session", "open_catalogue"]
