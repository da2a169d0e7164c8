"""WebShop (Yao et al., NeurIPS 2022) in text mode: what the original says, from plain Python and two files.

from gigpo_jax.env_bridge.webshop import Session, open_catalogue

session = Session(open_catalogue(DIR, goals="human", draw_seed=42))
page = session.reset(0)
page = session.step("search[red shoes]")     # page.text, page.available, page.reward, page.done
"""

from gigpo_jax.env_bridge.webshop.catalogue import Catalogue, open_catalogue
from gigpo_jax.env_bridge.webshop.session import Page, Session

__all__ = ["Catalogue", "Page", "Session", "open_catalogue"]
