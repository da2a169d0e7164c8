"""Imports run downwards only, and environment workers never see jax."""

import ast
import functools
import pathlib
import subprocess
import sys

import pytest

PACKAGE = pathlib.Path(__file__).parents[1] / "gigpo_jax"
LIGHT = ("errors", "references", "env_bridge", "envs", "trajectory")  # these must not need jax
ADAPTED = {  # what the adapters adapt to; gigpo-worlds has it as extras
    "interfaces.gymnasium": {"gymnasium"},
    "interfaces.openenv": {"openenv", "uvicorn"},
    "interfaces.verifiers": {"verifiers", "datasets"},
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
                package = ["gigpo_jax", *name.split(".")][: None if path.name == "__init__.py" else -1]
                base = ".".join([*package[: len(package) - node.level + 1], *([base] if base else [])])
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                found.add(inner if inner.removeprefix("gigpo_jax.") in modules() else base)
    return frozenset(found)


def _top_level(body: list[ast.stmt]) -> list[ast.stmt]:
    """Statements that run on import, those in `if` and `try` included; not what is for type checkers."""
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
    found = {other.removeprefix("gigpo_jax.") for other in imports if other.startswith("gigpo_jax.")}
    return {other for other in found if other in modules()} - {name}


# The floors of the house (docs/architecture.md): what a room may import of ours, beside itself. What is in no room is a
# mode (main, train, ..): no room may import it.
ALLOWED = {
    "errors": set(),
    "files": {"errors"},
    "references": {"errors"},
    "settings": set(),
    "env_bridge": {"errors", "references"},
    "envs": {"errors", "files", "references", "env_bridge"},
    "interfaces": {"errors", "env_bridge", "envs"},
    "rl": {"errors", "references", "settings"},
    "models": {"errors", "files"},
    "sampling": {"errors", "env_bridge", "models"},
    "trajectory": {"errors", "env_bridge", "models"},
    "config": {"errors", "settings", "rl", "models", "envs", "env_bridge"},
    "batching": {"errors", "env_bridge", "models", "rl", "trajectory"},
    "run.partition": {"errors", "models"},
    "run.memory": {"errors", "models", "rl", "run.partition"},
    "policy": {"errors", "config", "models", "sampling", "run.partition", "run.memory"},
    "run": {
        *("errors", "files", "references", "env_bridge", "models", "rl", "sampling", "trajectory", "config", "policy"),
        *("run.partition", "run.memory"),
    },
    "columns": {
        *("errors", "env_bridge", "envs", "models", "rl", "trajectory", "batching", "policy"),
        *("run", "run.partition"),
    },
    "learner": {
        *("errors", "models", "rl", "trajectory", "config", "batching", "policy", "columns"),
        *("envs", "run", "run.partition", "run.memory"),
    },
    "endpoint": {"errors", "env_bridge", "models", "sampling", "trajectory"},
    "rollout": {
        *("errors", "files", "env_bridge", "envs", "endpoint", "models", "sampling", "trajectory", "config", "policy"),
        *("run", "run.partition", "run.memory"),
    },
    "preflight": {
        *(
            "errors",
            "files",
            "rl",
            "models",
            "sampling",
            "batching",
            "config",
            "policy",
            "columns",
            "learner",
            "rollout",
        ),
        *("run", "run.partition", "run.memory"),
    },
    "credit": {
        *("errors", "files", "env_bridge", "envs", "rl", "models", "sampling", "trajectory", "config", "batching"),
        *("policy", "columns", "learner", "run", "run.partition", "rollout"),
    },
    "compare": {"errors", "files", "config"},
    "inspect": {"errors", "config", "rollout", "run"},
}


def room(name: str) -> str:
    """The key of `ALLOWED` that a module falls under, else its name."""
    parts = name.split(".")
    prefixes = [".".join(parts[:length]) for length in range(len(parts), 0, -1)]
    return next((prefix for prefix in prefixes if prefix in ALLOWED), name)


def test_a_room_imports_only_what_stands_below_it() -> None:
    broken = [
        f"{name} imports {other}"
        for name in modules()
        if room(name) in ALLOWED
        for other in our_imports(name)
        if room(other) not in ALLOWED[room(name)] | {room(name), ""}
    ]
    assert not broken


def test_nothing_imports_what_stands_above_it() -> None:
    """main -> train -> the rest: the loop is imported by the program alone, the program by nobody."""
    above = {"main": set(), "train": {"main"}}
    broken = [
        f"{name} imports {other}"
        for name in modules()
        for other in our_imports(name)
        if other in above and name not in above[other]
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


def test_env_bridge_needs_the_standard_library_and_numpy_alone() -> None:
    """On import; a function may import what an option of its needs, but never jax."""
    allowed = set(sys.stdlib_module_names) | {"numpy", "gigpo_jax"}
    for name in modules():
        if room(name) in (*LIGHT, "interfaces"):
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
        "import gigpo_jax.envs.registry, gigpo_jax.env_bridge.pool, gigpo_jax.env_bridge.worker",
        "import gigpo_jax.envs.alfworld.env, gigpo_jax.envs.alfworld.data.generate",
        "import gigpo_jax.interfaces.gymnasium",
        "import gigpo_jax.envs.alfworld.expert.expert, gigpo_jax.env_bridge.checker, gigpo_jax.trajectory",
        "import gigpo_jax.rollout.rollout, gigpo_jax.models.tokenizer",
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
