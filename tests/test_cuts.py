"""The distributions cut out of the package: every file imports what the cut has, and no more."""

import ast
import pathlib
import subprocess
import sys
from collections.abc import Mapping

import numpy as np
import pytest
from gigpo_credit import columns

from gigpo_jax.core.references import load_reference
from gigpo_jax.rl.algorithms import ALGORITHMS

ROOT = pathlib.Path(__file__).parents[1]
# Files that need more are for the extras of gigpo-worlds, which have the names of these folders.
ADAPTERS = tuple(f"gigpo_jax/envs/{name}/" for name in ("gymnasium", "openenv", "verifiers"))


def top_level_imports(path: pathlib.Path, modules: set[str]) -> set[str]:
    """Names that a file imports at its top; a module of the cut by its full name."""
    names: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= inner & modules
    return names


@pytest.mark.parametrize(
    ("name", "needed"),
    [("credit", {"jax", "numpy"}), ("worlds", {"numpy"})],
    ids=["credit", "worlds"],  # the text of a set is another one in each process
)
def test_a_cut_imports_what_it_has(name: str, needed: set[str], tmp_path: pathlib.Path) -> None:
    command = [sys.executable, "setup.py", "-q", "build_py", "--build-lib", str(tmp_path)]
    subprocess.run(command, cwd=ROOT / name, check=True, capture_output=True, timeout=120)
    tree = tmp_path / f"gigpo_{name}" / "sources"
    files = {path.relative_to(tree).as_posix(): path for path in sorted(tree.rglob("*.py"))}
    modules = {file.removesuffix(".py").replace("/", ".") for file in files}
    modules |= {module.removesuffix(".__init__") for module in modules}
    assert len(files) > 20
    missing = []
    for file, path in files.items():
        for imported in sorted(top_level_imports(path, modules)):
            package = imported.partition(".")[0]
            is_known = package in needed or package in sys.stdlib_module_names
            if file.startswith(ADAPTERS) and package != "gigpo_jax":
                is_known = True
            if not is_known and imported not in modules:
                missing.append(f"{file} imports {imported}")
    assert not missing


def test_gigpo_credit_has_the_columns_that_signals_declare() -> None:
    """Signals need the learner, so their declarations are not in the cut."""
    signals = {reference for name in ALGORITHMS for reference in ALGORITHMS[name].signals}
    classes = [load_reference(reference, key="") for reference in sorted(signals)]
    tables = [signal.columns for signal in classes if isinstance(signal.columns, Mapping)]
    declared = {name: column[:2] for table in tables for name, column in table.items()}
    assert declared == {
        name: (np.dtype(columns._TYPES[kind][0]).name, columns._WIDTHS.get(name))
        for name, kind in columns._EXTRA_TYPES.items()
    }
