"""The distribution gigpo-worlds: it plays with numpy alone, and beside gigpo_jax it changes
nothing.
"""

import zipfile
from pathlib import Path

import pytest

from tests.wheels import Environment, build_wheel, copy_sources, make_environment

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


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """Built from a copy of the files that the distribution consists of."""
    source = tmp_path / "source"
    copy_sources(source, "gigpo_jax", "worlds", "docs/interfaces.md")
    return build_wheel(source / "worlds", tmp_path)


@pytest.fixture
def light(wheel: Path, tmp_path: Path) -> Environment:
    """The wheel and numpy alone."""
    environment = make_environment(tmp_path)
    environment.install(wheel)
    environment.link_packages("numpy*")
    return environment


def check_contents(wheel: Path) -> None:
    """All files are below its own package, none of them is a file of gigpo_jax's own."""
    files = zipfile.ZipFile(wheel).namelist()
    version = wheel.name.split("-")[1]
    folders = {name.split("/")[0] for name in files}
    assert folders == {"gigpo_worlds", f"gigpo_worlds-{version}.dist-info"}
    home = "gigpo_worlds/sources/gigpo_jax/"
    inside = {name.removeprefix(home).split("/")[0] for name in files if name.startswith(home)}
    assert inside == {"__init__.py", "py.typed", "core", "env_bridge", "envs"}


def check_gymnasium(environment: Environment) -> None:
    """Importing the package registers its environments where gymnasium is installed."""
    names = ("gymnasium", "cloudpickle", "farama_notifications", "typing_extensions.py")
    links = environment.link_packages(*names)
    register = "import gigpo_worlds, gymnasium; print(gymnasium.make('gigpo/example-v0').spec.id)"
    assert environment.call_python(register) == "gigpo/example-v0\n"
    for link in links:
        link.unlink()


def check_play(environment: Environment) -> None:
    """Experts win the worlds; ALFWorld needs the package with its floor plans."""
    refused = environment.try_program("python", "-c", PLAY)
    reason = "alfworld: the package with the floor plans is not installed; get it with: pip install"
    assert reason in refused.stderr
    environment.link_packages("alfworld")
    *games, tasks, imports = environment.call_python(PLAY).splitlines()
    assert games == [f"{name} True True" for name in ("alfworld", "webshop", "search", "sokoban")]
    assert (tasks, imports) == ("128 tasks", "set() None")


def check_command(environment: Environment) -> None:
    """`gigpo-worlds envs` generates and freezes; a mistake is one line."""
    program = "gigpo-worlds"
    search = ["search", "generate", "--out", "world", "--people", "48"]
    assert environment.call(program, "envs", *search) == "world\n"
    wrong = environment.try_program(program, "serve")
    assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)
    bare = environment.try_program(program, "envs", "openenv", "example")
    assert (bare.returncode, bare.stderr.count("\n")) == (2, 1)
    assert bare.stderr.endswith('pip install "gigpo-worlds[openenv]"\n')
    assert environment.call(program, "--help").startswith("usage: gigpo-worlds envs")
    entry = "from gigpo_jax.envs import registry\n\nMINE = registry.spec('example')\n"
    (environment.folder / "mine.py").write_text(entry)
    freeze = ["freeze", "mine:MINE", "--name", "m", "--split", "test", "--out", "m.json"]
    assert environment.call(program, "envs", *freeze).startswith("m.json: 64 tasks")


def check_beside_gigpo_jax(environment: Environment) -> None:
    """gigpo_jax itself comes first where it is installed, and stays when the wheel leaves."""
    script = "import gigpo_worlds, gigpo_jax; print(gigpo_jax.__file__)"
    assert str(environment.site_packages) in environment.call_python(script)
    copy_sources(environment.site_packages, "gigpo_jax")
    own = environment.site_packages / "gigpo_jax/__init__.py"
    assert environment.call_python(script).strip() == str(own)
    environment.uninstall("gigpo-worlds")
    assert environment.call_python("import gigpo_jax.core.errors; print(1)") == "1\n"


def test_the_wheel_plays_with_numpy_alone_and_beside_gigpo_jax(
    wheel: Path, light: Environment
) -> None:
    check_contents(wheel)
    check_gymnasium(light)
    check_play(light)
    check_command(light)
    check_beside_gigpo_jax(light)
