"""gigpo-credit: advantages and their grades on plain arrays, built from the files of gigpo_jax.

pip install ./credit
"""

import os
import re
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

# Setuptools takes paths relative to the working directory.
os.chdir(Path(__file__).parent)
TREE = Path("../gigpo_jax")
TARGET = "gigpo_credit.sources.gigpo_jax"
# Package -> its modules, None: all but those that `LEFT_OUT` names.
METHODS = sorted(path.name for path in TREE.glob("methods/[!_]*"))
PACKAGES = {
    "core": None,
    "rl": None,
    "methods": None,
    # Signals of a method need the learner.
    **{f"methods.{name}": ("__init__", "advantages") for name in METHODS},
    "tools": ("__init__",),
    "tools.credit": ("__init__", "grades", "intervals"),
}
# They need optax.
LEFT_OUT = (
    "batch_logprobs",
    "critic",
    "imitation_update",
    "muon",
    "optimizer",
    "piecewise_update",
    "train_step",
    "update",
)


class BuildPy(build_py):
    """Takes the modules that need numpy and jax alone."""

    def find_package_modules(self, package: str, package_dir: str) -> list[tuple[str, str, str]]:
        """The modules of a package, as setuptools calls it."""
        modules = super().find_package_modules(package, package_dir)
        if package == TARGET:
            return [module for module in modules if module[1] == "__init__"]
        names = PACKAGES.get(package.removeprefix(f"{TARGET}."))
        if names is None:
            return [module for module in modules if module[1] not in LEFT_OUT]
        return [module for module in modules if module[1] in names]


packages = find_packages(TREE, include=list(PACKAGES))
setup(
    name="gigpo-credit",
    version=re.search(r'__version__ = "(.+?)"', (TREE / "__init__.py").read_text()).group(1),
    description="Step-level advantages for LLM agents and their grades, on plain arrays",
    long_description=Path("README.md").read_text(),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11",
    packages=["gigpo_credit", TARGET, *(f"{TARGET}.{name}" for name in packages)],
    package_dir={TARGET: str(TREE)},
    package_data={TARGET: ["py.typed"]},
    cmdclass={"build_py": BuildPy},
    install_requires=["jax>=0.10", "numpy>=2.0"],
)
