"""The distribution gigpo-worlds: it plays with numpy alone, and beside gigpo_jax it changes
nothing.
"""

import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from tests.test_wheel import ROOT, call

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("world_cache")]

PLAY = """
import importlib.util, sys
from pathlib import Path

import gigpo_worlds
from gigpo_jax.envs import registry
from gigpo_jax.envs.world import open_world

sizes = {
    "alfworld": {"splits": {"train": 6}, "size": "small"},
    "webshop": {"products": 60},
    "search": {"people": 48},
}
for name in ("alfworld", "webshop", "search", "sokoban"):
    options = {}
    if name in sizes:
        options["data"] = registry.generate_data(name, Path("data"), **sizes[name])
    world = open_world(name, split="train", **options)
    player, expert = world.play(), registry.make_expert(name, 0)
    step = player.reset(world.tasks[0])
    while not step.done:
        step = player.act(expert.act(step.observation))
    print(name, step.terminated, step.score > 0)
print(len(open_world("sokoban", panel="test").tasks), "tasks")
print({"jax", "scipy", "tqdm", "bm25s"} & set(sys.modules), importlib.util.find_spec("jax"))
"""


def test_the_wheel_plays_with_numpy_alone_and_beside_gigpo_jax(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name in ("gigpo_jax", "worlds"):
        shutil.copytree(
            ROOT / name,
            tmp_path / name,
            ignore=shutil.ignore_patterns("__pycache__", "build", "*.egg-info"),
        )
    (tmp_path / "docs").mkdir()
    shutil.copy(ROOT / "docs/interfaces.md", tmp_path / "docs")
    build = (
        "from setuptools.build_meta import build_wheel; import sys; print(build_wheel(sys.argv[1]))"
    )
    wheel = (
        tmp_path
        / call(sys.executable, "-c", build, tmp_path, cwd=tmp_path / "worlds").splitlines()[-1]
    )
    shutil.rmtree(tmp_path / "worlds")
    files = zipfile.ZipFile(wheel).namelist()
    folders = {name.split("/")[0] for name in files}
    assert folders == {
        "gigpo_worlds",
        f"gigpo_worlds-{wheel.name.split('-')[1]}.dist-info",
    }  # no file of gigpo_jax's own
    home = "gigpo_worlds/sources/gigpo_jax/"
    inside = {name.removeprefix(home).split("/")[0] for name in files if name.startswith(home)}
    light = {"core", "env_bridge", "envs"}
    assert inside == {"__init__.py", "py.typed", *light}
    shutil.move(tmp_path / "gigpo_jax", tmp_path / "full")

    venv.create(tmp_path / "venv", symlinks=True)
    python = tmp_path / "venv/bin/python"
    packages = Path(sysconfig.get_path("purelib"))
    site_packages = Path(
        call(
            python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=elsewhere
        ).strip()
    )
    call(
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "--no-deps",
        "--no-index",
        wheel,
        cwd=elsewhere,
    )
    for path in packages.glob("numpy*"):
        (site_packages / path.name).symlink_to(path)
    missing = subprocess.run(
        [python, "-c", PLAY],
        capture_output=True,
        text=True,
        cwd=elsewhere,
        check=False,
        timeout=400,
    )
    assert (
        "alfworld: the package with the floor plans is not installed; get it with: pip install"
        in missing.stderr
    )
    names = ("gymnasium", "cloudpickle", "farama_notifications", "typing_extensions.py")
    for name in names:
        (site_packages / name).symlink_to(packages / name)
    register = "import gigpo_worlds, gymnasium; print(gymnasium.make('gigpo/example-v0').spec.id)"
    (registered_id,) = call(python, "-c", register, cwd=elsewhere).splitlines()
    assert registered_id == "gigpo/example-v0"
    for name in names:
        (site_packages / name).unlink()
    (site_packages / "alfworld").symlink_to(
        packages / "alfworld"
    )  # as pip install --no-deps alfworld
    *games, tasks, last = call(python, "-c", PLAY, cwd=elsewhere).splitlines()
    assert games == [f"{name} True True" for name in ("alfworld", "webshop", "search", "sokoban")]
    assert (tasks, last) == ("128 tasks", "set() None")
    command = [tmp_path / "venv/bin/gigpo-worlds", "envs"]
    out = call(*command, "search", "generate", "--out", "world", "--people", "48", cwd=elsewhere)
    assert out == "world\n"
    wrong = subprocess.run(
        [command[0], "serve"], capture_output=True, text=True, cwd=elsewhere, check=False
    )
    assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)
    words = [*command, "openenv", "example"]
    bare = subprocess.run(words, capture_output=True, text=True, cwd=elsewhere, check=False)
    assert (bare.returncode, bare.stderr.count("\n")) == (2, 1)
    assert bare.stderr.endswith('pip install "gigpo-worlds[openenv]"\n')
    assert call(command[0], "--help", cwd=elsewhere).startswith("usage: gigpo-worlds envs")
    entry = "from gigpo_jax.envs import registry\n\nMINE = registry.spec('example')\n"
    (elsewhere / "mine.py").write_text(entry)
    freeze = [*command, "freeze", "mine:MINE", "--name", "m", "--split", "test", "--out", "m.json"]
    assert call(*freeze, cwd=elsewhere).startswith("m.json: 64 tasks")

    script = "import gigpo_worlds, gigpo_jax; print(gigpo_jax.__file__)"
    assert str(site_packages) in call(python, "-c", script, cwd=elsewhere)
    shutil.move(tmp_path / "full", site_packages / "gigpo_jax")
    assert call(python, "-c", script, cwd=elsewhere).strip() == str(
        site_packages / "gigpo_jax/__init__.py"
    )
    call(
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "uninstall",
        "-y",
        "gigpo-worlds",
        cwd=elsewhere,
    )
    assert call(python, "-c", "import gigpo_jax.core.errors; print(1)", cwd=elsewhere) == "1\n"
