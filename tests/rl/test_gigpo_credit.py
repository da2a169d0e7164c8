"""The distribution gigpo-credit: five lines with numpy and jax alone, and beside the others."""

import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import numpy as np
import pytest

from gigpo_jax.rl.algorithms import make_advantages
from gigpo_jax.rl.types import collect_columns
from gigpo_jax.tools.credit import grades
from tests.rl.test_advantages import random_columns
from tests.test_wheel import ROOT, call

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


def build(folder: Path) -> Path:
    """The wheel, built from a copy of the tree."""
    for name in ("gigpo_jax", "credit"):
        shutil.copytree(
            ROOT / name,
            folder / name,
            ignore=shutil.ignore_patterns("__pycache__", "build", "*.egg-info"),
        )
    script = (
        "from setuptools.build_meta import build_wheel; import sys; print(build_wheel(sys.argv[1]))"
    )
    out = call(sys.executable, "-c", script, folder, cwd=folder / "credit")
    return folder / out.splitlines()[-1]


def test_the_wheel_gives_our_numbers_with_numpy_and_jax_alone(tmp_path: Path) -> None:
    wheel = build(tmp_path)
    files = zipfile.ZipFile(wheel).namelist()
    home = "gigpo_credit/sources/gigpo_jax/"
    inside = {name.removeprefix(home) for name in files if name.startswith(home)}
    assert {name.split("/")[0] for name in inside} == {
        "__init__.py",
        "py.typed",
        "core",
        "methods",
        "rl",
        "tools",
    }
    assert "rl/update.py" not in inside
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    venv.create(tmp_path / "venv", symlinks=True)
    python = tmp_path / "venv/bin/python"
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site_packages = Path(call(python, "-c", code, cwd=elsewhere).strip())
    zipfile.ZipFile(wheel).extractall(site_packages)
    packages = Path(sysconfig.get_path("purelib"))
    for name in NEEDED:
        for path in (
            *packages.glob(name),
            *packages.glob(f"{name}-*"),
            *packages.glob(f"{name}.*"),
        ):
            (site_packages / path.name).symlink_to(path)

    batch = random_columns(3)
    np.savez(elsewhere / "batch.npz", **batch)
    # The first sentence names the column, the second says that nothing else was imported.
    out = call(python, "-c", COMPARE, cwd=elsewhere).splitlines()
    assert out == ["entropy=None: empg needs it; give the column", "set()"]
    found = np.load(elsewhere / "found.npz")
    common = {"gamma": 0.9, "step_weight": 1.0, "normalize": "mean_std"}
    keep = batch["mask"]
    # The next rows among those that the script gets.
    keys = list(zip(*(batch[name].tolist() for name in ("group", "trajectory", "step"))))
    rows = {key: row for row, key in enumerate(keys) if keep[row]}
    following = [rows.get((group, trajectory, step + 1), -1) for group, trajectory, step in keys]
    anchors = np.concatenate([batch["anchor"], np.zeros((1, 2), np.uint32)])
    batch["next_anchor"] = anchors[following]
    for name, settings in (
        ("gigpo", {}),
        ("salt", {}),
        ("max_rl", {}),
        ("empg", {"base": "hgpo", "alpha": 2.0}),
        ("graph_values", {"shrinkage": 0.5, "truncation": "ignore"}),
    ):
        function = make_advantages(name, "verl_agent", **common, **settings)
        expected = np.asarray(function(collect_columns(**batch)).total)[keep]
        assert np.any(expected)
        np.testing.assert_allclose(found[name], expected, rtol=1e-5, atol=1e-5, err_msg=name)
    measured = grades.Measured(
        batch["value"][keep].astype(float), np.full(keep.sum(), 0.1), batch["group"][keep]
    )
    graded = grades.grade(found["gigpo"], measured, 0, found["max_rl"])
    for name in ("corrected", "difference"):
        np.testing.assert_allclose(found[name], graded[name])

    # The example of the README, and gigpo-worlds beside it in both orders.
    text = (ROOT / "credit/README.md").read_text()
    example = re.findall(r"```python\n(.*?)```", text, re.S)[0]
    expected_line = re.search(r"# (\[.*\])", example)
    assert expected_line
    assert call(python, "-c", example, cwd=elsewhere).strip() == expected_line[1]
    shutil.copytree(ROOT / "worlds/gigpo_worlds", site_packages / "gigpo_worlds")
    light = site_packages / "gigpo_worlds/sources/gigpo_jax"
    light.mkdir(parents=True)
    shutil.copy(ROOT / "gigpo_jax/__init__.py", light)
    for name in ("core", "env_bridge", "envs"):
        shutil.copytree(ROOT / "gigpo_jax" / name, light / name)
    for names in (("gigpo_worlds", "gigpo_credit"), ("gigpo_credit", "gigpo_worlds")):
        script = "".join(f"import {name}; " for name in names)
        script += "import gigpo_jax.rl.algorithms, gigpo_jax.envs.registry; print(1)"
        assert call(python, "-c", script, cwd=elsewhere) == "1\n"
    # gigpo_jax itself comes first where it is installed.
    script = "import gigpo_credit, gigpo_jax; print(gigpo_jax.__file__)"
    done = subprocess.run(
        [python, "-c", script],
        capture_output=True,
        text=True,
        cwd=elsewhere,
        env={"PYTHONPATH": str(ROOT)},
        check=True,
    )
    assert done.stdout.strip() == str(ROOT / "gigpo_jax/__init__.py")
