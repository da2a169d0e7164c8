"""Imports run downwards only, and environment workers never see jax."""

import ast
import functools
import pathlib
import re
import subprocess
import sys

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
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(part for part in parts if part != "__init__")] = path
    return found


@functools.cache
def imports_of(name: str, *, everywhere: bool) -> frozenset[str]:
    """Absolute names of the modules that a module imports: at its top, or in functions too."""
    path = modules()[name]
    tree = ast.parse(path.read_text())
    found: set[str] = set()
    for node in ast.walk(tree) if everywhere else _top_level(tree.body):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = ["gigpo_jax", *name.split(".")][
                    : None if path.name == "__init__.py" else -1
                ]
                base = ".".join(
                    [*package[: len(package) - node.level + 1], *([base] if base else [])]
                )
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                found.add(inner if inner.removeprefix("gigpo_jax.") in modules() else base)
    return frozenset(found)


def _top_level(body: list[ast.stmt]) -> list[ast.stmt]:
    """Statements that run on import, those in `if` and `try` included; not what is for type
    checkers.
    """
    found = []
    for node in body:
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            continue
        found.append(node)
        for inner in ("body", "orelse", "finalbody"):
            if isinstance(node, (ast.If, ast.Try, ast.With)):
                found += _top_level(getattr(node, inner, []))
    return found


def our_imports(name: str) -> set[str]:
    """The project's own modules that a module imports anywhere, below the package."""
    imports = imports_of(name, everywhere=True)
    found = {
        other.removeprefix("gigpo_jax.") for other in imports if other.startswith("gigpo_jax.")
    }
    return {other for other in found if other in modules()} - {name}


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
        f"{name} imports {other}"
        for name in modules()
        for other in our_imports(name)
        if room(other) not in (room(name), "") and FLOOR[room(other)] >= FLOOR[room(name)]
    ]
    assert not broken


def test_modes_do_not_import_tools_and_tools_do_not_import_each_other() -> None:
    def tool(name: str) -> str:
        return ".".join(name.split(".")[:2]) if name.startswith("tools.") else room(name)

    broken = [
        f"{name} imports {other}"
        for name in modules()
        for other in our_imports(name)
        if room(other) == "tools" and tool(name) != tool(other)
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
            top = {found.partition(".")[0] for found in imports_of(name, everywhere=False)}
            top -= ADAPTED.get(name, set())
            assert top <= allowed, f"{name} imports {sorted(top - allowed)}"
            anywhere = {found.partition(".")[0] for found in imports_of(name, everywhere=True)}
            assert not anywhere & {"jax", "jaxlib", "flax", "optax", "orbax"}, name


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
    assert {name: find_words(text) for name, text in core.items() if find_words(text)} == {}


def find_words(text: str) -> list[str]:
    """The words of single methods in a text."""
    return [match[0] for match in METHOD_WORDS.finditer(text)]


def test_the_core_imports_no_method() -> None:
    """Methods are found by name in `core.method_table`, when a config has them."""
    broken = [
        f"{name} imports {other}"
        for name in modules()
        for other in our_imports(name)
        if room(other) == "methods" and room(name) != "methods"
    ]
    assert not broken
