"""gigpo-worlds: the environments without jax, built from the files of gigpo_jax beside this folder.

pip install ./worlds
"""

import os
import re
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

# Setuptools takes paths relative to the working directory.
os.chdir(Path(__file__).parent)
TREE = Path("../gigpo_jax")
PACKAGES = ("core", "env_bridge", "envs")
FILES = ("__init__",)  # modules of gigpo_jax itself
TARGET = "gigpo_worlds.sources.gigpo_jax"


class BuildPy(build_py):
    """Leaves out the modules of gigpo_jax itself that need jax."""

    def find_package_modules(self, package: str, package_dir: str) -> list[tuple[str, str, str]]:
        """The modules of a package, as setuptools calls it."""
        modules = super().find_package_modules(package, package_dir)
        if package != TARGET:
            return modules
        return [module for module in modules if module[1] in FILES]


patterns = [*PACKAGES, *(f"{name}.*" for name in PACKAGES)]
packages = find_packages(TREE, include=patterns)
setup(
    name="gigpo-worlds",
    version=re.search(r'__version__ = "(.+?)"', (TREE / "__init__.py").read_text()).group(1),
    description=(
        "ALFWorld, WebShop, search, Sokoban and card games for LLM agents, "
        "without jax, Java or downloads"
    ),
    long_description=Path("../docs/interfaces.md").read_text(),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11",
    packages=["gigpo_worlds", TARGET, *(f"{TARGET}.{name}" for name in packages)],
    package_dir={TARGET: str(TREE)},
    package_data={TARGET: ["py.typed", "envs/**/*.json", "envs/**/*.css", "envs/**/*.html"]},
    cmdclass={"build_py": BuildPy},
    entry_points={"console_scripts": ["gigpo-worlds=gigpo_worlds.__main__:main"]},
    install_requires=["numpy>=2.0"],
    extras_require={
        # The floor plans; `pip install --no-deps` of it is enough.
        "alfworld": ["alfworld==0.4.2"],
        "gymnasium": ["gymnasium>=1.2"],
        "openenv": ["openenv>=0.10,<0.11"],
        # The server of a retriever, and questions in parquet files.
        "search": ["aiohttp>=3.9", "pyarrow>=15"],
        "verifiers": ["verifiers>=0.3.1,<0.4"],
    },
)
