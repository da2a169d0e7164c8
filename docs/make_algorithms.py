"""Writes docs/algorithms.md, the table of all algorithms, from the catalogue."""

from pathlib import Path
from typing import Any

from gigpo_jax.core.method_table import METHOD_ALGORITHMS
from gigpo_jax.rl.algorithms import ALGORITHMS

HEAD = """# All algorithms

`python docs/make_algorithms.py` writes this page from `gigpo_jax/rl/algorithms.py` and `gigpo_jax/core/method_table.py`.
[Choosing an algorithm](choosing.md) says which to take, and what stable means.

*Fixed* settings under `rl` define an algorithm; another value is refused. *Defaults* are replaced by a value of a config
file or the command line; `--config.KEY=auto` returns to them. `WORKDIR/config.json` holds the values that were used.
Wrappers change the advantages of another algorithm, `rl.settings.base`, and have its fixed settings and defaults too.
Settings that an algorithm does not read are refused; `rl.gamma` is always allowed, because returns in saved rollouts and
in `gigpo credit` use it.

| `rl.algorithm` | explained in | state | fixed | defaults |
|---|---|---|---|---|
"""
# Formula and settings are certain, by paper and code, and an independent version agrees.
STABLE = ("gigpo", "grpo", "dr_grpo", "dapo", "rloo", "reinforce_pp", "gspo", "gmpo", "ppo")
PAGES = {
    "algorithm": ("gigpo", "grpo", "dr_grpo", "dapo"),
    "loss": ("gspo", "gmpo", "hoelder"),
    "critic": ("ppo",),
}


def page() -> str:
    """The whole page."""
    pages = {name: stem for stem, names in PAGES.items() for name in names}
    rows = [HEAD]
    for name, algorithm in ALGORITHMS.items():
        page = _link(name, pages.get(name, "advantages"))
        wrapper = " (wrapper)" * ("base" in algorithm.settings)
        state = "stable" if name in STABLE else "experimental"
        fixed, defaults = _show(algorithm.fixed), _show(algorithm.defaults)
        rows.append(f"| `{name}`{wrapper} | {page} | {state} | {fixed} | {defaults} |\n")
    return "".join(rows)


def _link(name: str, stem: str) -> str:
    """A link to the page of an algorithm: for a method the README of its folder."""
    if name not in METHOD_ALGORITHMS:
        return f"[{stem}]({stem}.md)"
    folder = METHOD_ALGORITHMS[name].partition(":")[0].rpartition(".")[2]
    return f"[methods/{folder}](../gigpo_jax/methods/{folder}/README.md)"


def _show(settings: Any) -> str:
    return ", ".join(
        f"`{key}={f'{value:.4g}' if isinstance(value, float) else value}`"
        for key, value in settings.items()
    )


if __name__ == "__main__":
    Path(__file__).with_name("algorithms.md").write_text(page(), encoding="utf-8")
