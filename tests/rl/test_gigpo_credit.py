"""The distribution gigpo-credit: five lines with numpy and jax alone, and beside the others."""

import re
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest

from gigpo_jax.rl.algorithms import make_advantages
from gigpo_jax.rl.types import collect_columns
from gigpo_jax.tools.credit import grades
from tests.rl.test_advantages import Columns, random_columns
from tests.wheels import ROOT, Environment, build_wheel, copy_sources, make_environment

pytestmark = pytest.mark.slow

NEEDED = ("jax", "jaxlib", "numpy", "scipy", "ml_dtypes", "opt_einsum")
COMPARE = """
import sys
import numpy as np
import gigpo_credit

batch = dict(np.load("batch.npz"))
keep = batch["mask"]
rows = {name: batch[name][keep] for name in ("reward", "penalty", "trajectory", "step", "group")}
text = lambda name: [str(tuple(row)) for row in batch[name][keep].tolist()]
rows |= {"anchor": text("anchor"), "action": text("action"), "preset": "verl_agent", "gamma": 0.9}
found = {name: gigpo_credit.advantages(name, **rows) for name in ("gigpo", "salt", "max_rl")}
entropy = {"entropy": batch["entropy"][keep]}
found["empg"] = gigpo_credit.advantages("empg", **rows, base="hgpo", alpha=2.0, columns=entropy)
ends = {"truncated": batch["truncated"][keep].astype(int)}
found["graph_values"] = gigpo_credit.advantages(
    "graph_values", **rows, shrinkage=0.5, truncation="ignore", columns=ends)
grades = gigpo_credit.grade(
    found["gigpo"], advantage=batch["value"][keep], error=np.full(keep.sum(), 0.1),
    group=rows["group"], baseline=found["max_rl"])
np.savez("found.npz", **found, corrected=grades["corrected"], difference=grades["difference"])
try:
    gigpo_credit.advantages("empg", **rows)
except gigpo_credit.InputError as error:
    print(error)
print({"flax", "optax", "ml_collections", "transformers", "gigpo_jax.rl.update"} & {*sys.modules})
"""


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """Built from a copy of the files that the distribution consists of."""
    source = tmp_path / "source"
    copy_sources(source, "gigpo_jax", "credit")
    return build_wheel(source / "credit", tmp_path)


@pytest.fixture
def light(wheel: Path, tmp_path: Path) -> Environment:
    """The wheel, numpy and jax alone."""
    environment = make_environment(tmp_path)
    environment.install(wheel)
    environment.link_packages(
        *(pattern for name in NEEDED for pattern in (name, f"{name}-*", f"{name}.*"))
    )
    return environment


def check_contents(wheel: Path) -> None:
    """Formulas and grades are inside, updates are not."""
    files = zipfile.ZipFile(wheel).namelist()
    home = "gigpo_credit/sources/gigpo_jax/"
    inside = {name.removeprefix(home) for name in files if name.startswith(home)}
    folders = {name.split("/")[0] for name in inside}
    assert folders == {"__init__.py", "py.typed", "core", "methods", "rl", "tools"}
    assert "rl/update.py" not in inside


def find_next_anchors(batch: Columns) -> np.ndarray:
    """Anchors of the next steps among the rows that count, 0 behind an end."""
    keys = list(zip(*(batch[name].tolist() for name in ("group", "trajectory", "step"))))
    rows = {key: row for row, key in enumerate(keys) if batch["mask"][row]}
    following = [rows.get((group, trajectory, step + 1), -1) for group, trajectory, step in keys]
    return np.concatenate([batch["anchor"], np.zeros((1, 2), np.uint32)])[following]


def check_numbers(environment: Environment) -> None:
    """Advantages and grades are those of gigpo_jax for the same rows."""
    batch = random_columns(3)
    np.savez(environment.folder / "batch.npz", **batch)
    # The first sentence names the column, the second says that nothing else was imported.
    out = environment.call_python(COMPARE).splitlines()
    assert out == ["entropy=None: empg needs it; give the column", "set()"]
    found = np.load(environment.folder / "found.npz")
    common = {"gamma": 0.9, "step_weight": 1.0, "normalize": "mean_std"}
    keep = batch["mask"]
    columns = collect_columns(**batch | {"next_anchor": find_next_anchors(batch)})
    for name, settings in (
        ("gigpo", {}),
        ("salt", {}),
        ("max_rl", {}),
        ("empg", {"base": "hgpo", "alpha": 2.0}),
        ("graph_values", {"shrinkage": 0.5, "truncation": "ignore"}),
    ):
        function = make_advantages(name, "verl_agent", **common, **settings)
        expected = np.asarray(function(columns).total)[keep]
        assert np.any(expected)
        np.testing.assert_allclose(found[name], expected, rtol=1e-5, atol=1e-5, err_msg=name)
    measured = grades.Measured(
        batch["value"][keep].astype(float), np.full(keep.sum(), 0.1), batch["group"][keep]
    )
    graded = grades.grade(found["gigpo"], measured, 0, found["max_rl"])
    for name in ("corrected", "difference"):
        np.testing.assert_allclose(found[name], graded[name])


def check_example(environment: Environment) -> None:
    """The example of the README prints the numbers that stand behind it."""
    text = (ROOT / "credit/README.md").read_text()
    example = re.findall(r"```python\n(.*?)```", text, re.S)[0]
    expected_line = re.search(r"# (\[.*\])", example)
    assert expected_line
    assert environment.call_python(example).strip() == expected_line[1]


def check_beside_gigpo_worlds(environment: Environment) -> None:
    """Both can be imported in both orders."""
    packages = environment.site_packages
    shutil.copytree(ROOT / "worlds/gigpo_worlds", packages / "gigpo_worlds")
    names = (f"gigpo_jax/{name}" for name in ("__init__.py", "core", "env_bridge", "envs"))
    copy_sources(packages / "gigpo_worlds/sources", *names)
    for names in (("gigpo_worlds", "gigpo_credit"), ("gigpo_credit", "gigpo_worlds")):
        script = "".join(f"import {name}; " for name in names)
        script += "import gigpo_jax.rl.algorithms, gigpo_jax.envs.registry; print(1)"
        assert environment.call_python(script) == "1\n"


def check_beside_gigpo_jax(environment: Environment) -> None:
    """gigpo_jax itself comes first where it is installed."""
    script = "import gigpo_credit, gigpo_jax; print(gigpo_jax.__file__)"
    done = environment.try_program("python", "-c", script, PYTHONPATH=str(ROOT))
    assert done.stdout.strip() == str(ROOT / "gigpo_jax/__init__.py"), done.stderr


def test_the_wheel_gives_our_numbers_with_numpy_and_jax_alone(
    wheel: Path, light: Environment
) -> None:
    check_contents(wheel)
    check_numbers(light)
    check_example(light)
    check_beside_gigpo_worlds(light)
    check_beside_gigpo_jax(light)
