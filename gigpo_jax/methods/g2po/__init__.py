"""G2PO (arXiv 2606.22995): values of states, compared at each state and over the task."""

from gigpo_jax.methods.g2po.advantages import g2po
from gigpo_jax.rl.algorithm_types import Algorithm

METHOD = Algorithm(advantages=g2po, takes_forks=True)
