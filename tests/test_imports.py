"""Imports run downwards only, and environment workers never see jax."""

import ast
import functools
import pathlib
import re
import subprocess
import sys
from collections.abc import Iterable

import pytest

PACKAGE = pathlib.Path(__file__).parents[1] / "gigpo_jax"
LIGHT = ("core", "env_bridge", "envs", "trajectory")  # these must not need jax
ADAPTED = {  # what the adapters adapt to; gigpo-worlds has it as extras
    "envs.gymnasium.worlds": {"gymnasium"},
    "envs.openenv.worlds": {"openenv", "uvicorn"},
    "envs.verifiers.worlds": {"verifiers", "datasets"},
    "envs.openenv.client": {"aiohttp"},
    "envs.verifiers.policy_client": {"verifiers"},
}


@functools.cache
def modules() -> dict[str, pathlib.Path]:
    """Dotted name below the package -> file."""
    paths = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        names = path.relative_to(PACKAGE).with_suffix("").parts
        paths[".".join(name for name in names if name != "__init__")] = path
    return paths


@functools.cache
def imports_of(name: str, *, everywhere: bool) -> frozenset[str]:
    """Absolute names of the modules that a module imports: at its top, or in functions too."""
    tree = ast.parse(modules()[name].read_text())
    imports: set[str] = set()
    for node in ast.walk(tree) if everywhere else _top_level(tree.body):
        if isinstance(node, ast.Import):
            imports |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{name} has a relative import"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                is_module = inner.removeprefix("gigpo_jax.") in modules()
                imports.add(inner if is_module else node.module)
    return frozenset(imports)


def _top_level(body: list[ast.stmt]) -> list[ast.stmt]:
    """Statements that run on import, those in `if` and `try` too, but not for type checkers."""
    statements = []
    for node in body:
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            continue
        statements.append(node)
        for block in ("body", "orelse", "finalbody"):
            if isinstance(node, (ast.If, ast.Try, ast.With)):
                statements += _top_level(getattr(node, block, []))
    return statements


def our_imports(name: str) -> set[str]:
    """The project's own modules that a module imports anywhere, below the package."""
    prefix = "gigpo_jax."
    imports = imports_of(name, everywhere=True)
    ours = {module.removeprefix(prefix) for module in imports if module.startswith(prefix)}
    return (ours & modules().keys()) - {name}


# The floors of the house (docs/architecture.md), from the ground up: a room imports only rooms of
# lower floors.
FLOORS = (
    {"core"},
    {"rl", "models", "env_bridge"},
    {"devices", "trajectory", "envs"},
    {"config"},
    {"engines"},
    {"policy"},
    {"run"},
    {"learner", "rollout"},
    {"methods"},
    {"modes", "tools"},
    {"main"},
    {"__main__", ""},
)
FLOOR = {name: number for number, names in enumerate(FLOORS) for name in names}


def room(name: str) -> str:
    """The folder or file of the package that a module is in."""
    return name.partition(".")[0]


def test_a_room_imports_only_what_stands_below_it() -> None:
    broken = [
        f"{name} imports {imported}"
        for name in modules()
        for imported in our_imports(name)
        if room(imported) not in (room(name), "") and FLOOR[room(imported)] >= FLOOR[room(name)]
    ]
    assert not broken


def test_modes_do_not_import_tools_and_tools_do_not_import_each_other() -> None:
    def tool(name: str) -> str:
        return ".".join(name.split(".")[:2]) if name.startswith("tools.") else room(name)

    broken = [
        f"{name} imports {imported}"
        for name in modules()
        for imported in our_imports(name)
        if room(imported) == "tools" and tool(name) != tool(imported)
    ]
    assert not broken


def test_there_are_no_import_cycles() -> None:
    """Imports in functions and for type checkers count too."""
    graph = {name: our_imports(name) for name in modules()}
    state: dict[str, str] = {}

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert state.get(name) != "open", " -> ".join((*trail[trail.index(name) :], name))
        if name not in state:
            state[name] = "open"
            for other in sorted(graph[name]):
                visit(other, (*trail, name))
            state[name] = "done"

    for name in sorted(graph):
        visit(name, ())


def test_there_is_one_command_line() -> None:
    children = {"engines.vllm.worker.guard", "envs.shell.sandbox.launcher", "models.text.renderer"}
    # The retriever's server, under the name that scripts of search QA start.
    scripts = {"envs.search.server"}
    programs = {
        name
        for name, path in modules().items()
        if path.name == "__main__.py" or '__name__ == "__main__"' in path.read_text()
    }
    assert programs == {"__main__", "main"} | children | scripts


def test_env_bridge_needs_the_standard_library_and_numpy_alone() -> None:
    """On import; a function may import what an option of its needs, but never jax."""
    allowed = set(sys.stdlib_module_names) | {"numpy", "gigpo_jax"}
    for name in modules():
        if room(name) in LIGHT:
            imports = packages(imports_of(name, everywhere=False)) - ADAPTED.get(name, set())
            assert imports <= allowed, f"{name} imports {sorted(imports - allowed)}"
            all_imports = packages(imports_of(name, everywhere=True))
            assert not all_imports & {"jax", "jaxlib", "flax", "optax", "orbax"}, name


def packages(imports: Iterable[str]) -> set[str]:
    return {module.partition(".")[0] for module in imports}


def test_the_package_itself_imports_nothing() -> None:
    assert imports_of("", everywhere=False) <= {"typing"}


@pytest.mark.parametrize(
    "statement",
    [
        "import gigpo_jax.envs.registry, gigpo_jax.env_bridge.processes.pool, gigpo_jax.env_bridge.processes.worker",
        "import gigpo_jax.envs.alfworld.env, gigpo_jax.envs.alfworld.data.generate",
        "import gigpo_jax.envs.gymnasium.worlds",
        "import gigpo_jax.envs.alfworld.expert.expert, gigpo_jax.env_bridge.checker, gigpo_jax.trajectory",
        "import gigpo_jax.rollout.rollout, gigpo_jax.models.text.tokenizer",
    ],
)
def test_a_fresh_process_has_no_jax_after(statement: str) -> None:
    check = "import sys; print(sorted({'jax', 'jaxlib', 'flax', 'torch', 'transformers'} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", f"{statement}; {check}"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        cwd=PACKAGE.parent,
    )
    assert done.stdout.strip() == "[]"


# Folders of methods; the others have English names.
METHODS = {path.name for path in (PACKAGE / "methods").iterdir() if (path / "README.md").exists()}
METHOD_NAMES = re.compile(
    rf"(?<![A-Za-z0-9_.])({'|'.join(METHODS - {'tree', 'salt', 'response_weight'})})(?![A-Za-z0-9])",
    re.IGNORECASE,
)
CORE = ("config", "learner", "rollout", "modes", "run", "engines", "devices", "rl", "env_bridge")
# Words that only single methods have.
METHOD_WORDS = re.compile(
    r"\b(hiper|strata|rebel|slea|oprl|spa_rl|igpo|vineppo|carl|rlvmr|serl|opd|hcapo|ema_grpo|belief"
    r"|lesson|subgoal|tcod|expert_starts|strateg(?:y|ies)|resample)\w*",
    re.IGNORECASE,
)


def test_core_files_name_no_method() -> None:
    """A method's names are in its folder and in `core.method_table`."""
    core = {name: path.read_text() for name, path in modules().items() if room(name) in CORE}
    assert [name for name, text in core.items() if "gigpo_jax.methods" in text] == []
    del core["config.removed_keys"]  # what became of keys of old configs
    everything = {
        name: path.read_text()
        for name, path in modules().items()
        if room(name) != "methods" and name not in ("core.method_table", "config.removed_keys")
    }
    assert len(METHODS) > 25
    assert {n: m[0] for n, text in everything.items() if (m := METHOD_NAMES.search(text))} == {}
    assert {name: find_words(text) for name, text in core.items() if find_words(text)} == {}


def find_words(text: str) -> list[str]:
    """The words of single methods in a text."""
    return [match[0] for match in METHOD_WORDS.finditer(text)]


def test_the_core_imports_no_method() -> None:
    """Methods are found by name in `core.method_table`, when a config has them."""
    broken = [
        f"{name} imports {imported}"
        for name in modules()
        for imported in our_imports(name)
        if room(imported) == "methods" and room(name) != "methods"
    ]
    assert not broken
