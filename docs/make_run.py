"""Writes "Read a run in a day" of docs/architecture.md: the files that a quickstart run imports.

python -m docs.make_run
"""

import ast
import functools
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

from configs.quickstart import get_config
from gigpo_jax.config import resolve
from gigpo_jax.config.checks import used_key_sets
from gigpo_jax.config.keys import KEY_SETS
from gigpo_jax.core.commands import MODES
from gigpo_jax.envs import registry
from gigpo_jax.rl.algorithms import ALGORITHMS
from gigpo_jax.rollout.engines import ENGINES
from gigpo_jax.run.loggers.loggers import LOGGERS

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs/architecture.md"
TITLE = "## Read a run in a day\n"
# In reading order: folders or files of the package, and what each is about. A file that is named
# stands apart from the rest of its folder.
ROOMS = {
    "__main__ main": "The command",
    "modes": "The loop",
    "trajectory policy env_bridge/types engines/base rl/types": "The nouns",
    "rollout": "Episodes",
    "env_bridge": "Environments, from outside",
    "envs": "Environments, from inside",
    "engines": "Sampling",
    "rl": "Advantages, losses and the update",
    "learner": "From episodes to updates",
    "models": "The model",
    "config": "The config",
    "run": "What a run keeps",
    "devices": "Devices",
    "core": "Tools of all folders",
}


def start_modules() -> list[str]:
    """The modules that a quickstart run imports by name."""
    config = resolve(get_config())
    entry = registry.spec(config.env.name)
    references = [
        registry.ENVIRONMENTS.reference(config.env.name),
        entry.build,
        entry.generate,
        entry.styles.reference(config.env.prompt),
        ENGINES.reference(config.engine.name),
        ALGORITHMS.reference(config.rl.algorithm),
        *ALGORITHMS[config.rl.algorithm].signals,
        *(KEY_SETS.reference(name) for name in used_key_sets(config)),
        *(LOGGERS.reference(name) for name in config.log.to),
    ]
    names = ["gigpo_jax.__main__", "gigpo_jax.main", f"gigpo_jax.{MODES['train'].module}"]
    # `main` starts the backend by name, the pool its worker processes, a model its family.
    names += ["gigpo_jax.devices.backend", "gigpo_jax.env_bridge.processes.worker"]
    names += ["gigpo_jax.models.families.qwen2"]
    return names + [reference.partition(":")[0] for reference in references]


def module_file(name: str) -> Path | None:
    """The file of a module of the package; None for another module, or a name in a module."""
    path = ROOT / name.replace(".", "/")
    if name.partition(".")[0] != "gigpo_jax":
        return None
    candidates = (path / "__init__.py", path.with_suffix(".py"))
    return next((file for file in candidates if file.exists()), None)


@functools.cache
def imported_modules(name: str) -> tuple[str, ...]:
    """The modules of the package that a module imports at its top, and the packages it is in."""
    file = module_file(name)
    assert file is not None, name
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    found = [name.rsplit(".", depth)[0] for depth in range(1, name.count(".") + 1)]
    for node in _statements(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join([*package.split(".")[: 1 - node.level or None], base]).strip(".")
            found += [base, *(f"{base}.{alias.name}" for alias in node.names)]
    return tuple(dict.fromkeys(found_name for found_name in found if module_file(found_name)))


def _statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """Statements that run on import, without those for type checkers."""
    for node in tree.body:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield node
        for inner in ("body", "orelse"):
            if isinstance(node, (ast.If, ast.Try, ast.With)):
                yield from getattr(node, inner, [])


def run_modules() -> list[str]:
    """The modules that a quickstart run imports, the importing one before the imported one."""
    visited: set[str] = set()
    order: list[str] = []

    def visit(name: str) -> None:
        if name not in visited:
            visited.add(name)
            for other in imported_modules(name):
                visit(other)
            # Behind all that it imports: the reverse has every module before them.
            order.append(name)

    for name in reversed(start_modules()):
        visit(name)
    return order[::-1]


def run_files() -> list[Path]:
    """The files of these modules in reading order, without those that hold nothing."""
    files = [file for name in run_modules() if (file := module_file(name)) is not None]
    numbers = {names: number for number, names in enumerate(ROOMS)}
    return sorted(files, key=lambda file: numbers.get(find_room(file), -1))


def find_room(file: Path) -> str:
    """The key of `ROOMS` that has a file; "" for the package itself."""
    path = file.relative_to(ROOT / "gigpo_jax").with_suffix("")
    rooms = {name: names for names in ROOMS for name in names.split()}
    return rooms.get(path.as_posix()) or rooms.get(path.parts[0], "")


def count_lines(file: Path) -> int:
    """The lines of a file."""
    return len(file.read_text().splitlines())


def describe_files() -> str:
    """The section of the page."""
    files = run_files()
    text = (
        "These files are what one iteration of `gigpo train --config=quickstart` imports, in reading order: within each "
        "section a file stands before the files that it imports (`__init__.py` is left out). What other configs and evaluations "
        "(`modes/panel_evaluation.py`) need is imported by name, or inside functions. A *signal* computes further columns of steps; "
        "*scores* are log-probabilities of finished episodes under a model. A *part* is what a method adds to an episode."
    )
    lines = [TITLE, textwrap.fill(text, 120, break_on_hyphens=False)]
    for names, title in ROOMS.items():
        lines += ["", f"### {title}", ""]
        for file in files:
            path = file.relative_to(ROOT / "gigpo_jax")
            if find_room(file) != names or path.name == "__init__.py":
                continue
            summary = (ast.get_docstring(ast.parse(file.read_text())) or "").partition("\n\n")[0]
            sentence = re.split(r"(?<=[.]) (?=[A-Z])", " ".join(summary.split()))[0]
            line = f"- `{path.as_posix()}`: {sentence.rstrip('.')}."
            lines += textwrap.wrap(line, 120, subsequent_indent="  ", break_on_hyphens=False)
    return "\n".join(lines) + "\n"


def main() -> None:
    """Writes the section."""
    page = PAGE.read_text()
    head, _, rest = page.partition(TITLE)
    _, mark, tail = rest.partition("\n## ")
    PAGE.write_text(f"{head}{describe_files()}{mark}{tail}")


if __name__ == "__main__":
    main()
