"""The command gigpo new env|algorithm NAME [--out DIR]."""

import argparse
import importlib.util
import keyword
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from string import Template

from gigpo_jax.core.errors import InputError, escape_controls
from gigpo_jax.core.folders import replace_folder
from gigpo_jax.env_bridge.freeze import write_panel
from gigpo_jax.envs.panels import freeze_tasks

TEMPLATES = Path(__file__).parent / "templates"
SUFFIX = ".txt"  # of a template; its name without it is the file's name
PANEL_TASKS = 16  # of each type
NEXT = {
    "env": """written: {folder}/ (README.md says what is where)
next:
  cd {folder}
  gigpo envs check {name}.env:ENVIRONMENT
  pip install pytest && python -m pytest tests
  gigpo sft --config=configs/sft.py --workdir=runs/{name}_sft
  gigpo train --config=configs/train.py --workdir=runs/{name}""",
    "algorithm": """written: {folder}/ (README.md says what is where)
next:
  cd {folder}
  pip install pytest && python -m pytest tests
  gigpo train --config=quickstart --config.rl.algorithm={name}:ALGORITHM --workdir=runs/{name}""",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Writes the files; returns 0 (done) or 2 (bad input)."""
    parser = argparse.ArgumentParser(
        prog="gigpo new",
        description="Writes a small complete environment or algorithm, with tests, to start from.",
    )
    parser.add_argument("kind", choices=list(NEXT), metavar="env|algorithm")
    parser.add_argument("name", metavar="NAME", help="name of the Python package or module")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder to make; default: NAME")
    args = parser.parse_args(argv)
    try:
        folder = args.out or Path(args.name)
        write_files(args.kind, args.name, folder)
    except InputError as error:
        print(f"gigpo new: {escape_controls(str(error))}", file=sys.stderr)
        return 2
    print(NEXT[args.kind].format(folder=folder, name=args.name))
    return 0


def write_files(kind: str, name: str, folder: Path) -> None:
    """Writes the files of a kind into a new folder, which appears whole or not at all.

    Args:
      kind: "env" or "algorithm".
      name: Name of the package or module.
      folder: Folder to make.

    Raises:
      InputError: the name cannot be used, or the folder exists or cannot be written.
    """
    if not name.isidentifier() or name != name.lower() or keyword.iskeyword(name):
        fix = "use small letters, digits and _, such as my_game"
        raise InputError("no name of a Python module", key="NAME", value=name, fix=fix)
    # Before Python's modules: a folder here is one for Python.
    if os.path.lexists(folder):
        raise InputError("exists", key=folder, fix="choose another NAME, or a folder with --out")
    # The new module would hide it, or be hidden by it, depending on the search path.
    if importlib.util.find_spec(name) is not None:
        reason = "a Python module has this name already"
        raise InputError(reason, key="NAME", value=name, fix="choose another")
    try:
        with replace_folder(folder) as draft:
            for template in sorted((TEMPLATES / kind).rglob(f"*{SUFFIX}")):
                place = str(template.relative_to(TEMPLATES / kind)).removesuffix(SUFFIX)
                path = draft / place.replace("NAME", name)
                path.parent.mkdir(parents=True, exist_ok=True)
                text = Template(template.read_text(encoding="utf-8"))
                path.write_text(text.substitute(name=name), encoding="utf-8")
            if kind == "env":
                _write_panel(draft, name)
    except OSError as error:
        reason = f"cannot be written ({error.strerror})"
        raise InputError(reason, key="--out", value=str(folder), fix="choose another") from error


def _write_panel(folder: Path, name: str) -> None:
    """Freezes the panel `small` of the new environment."""
    # The environment is imported from the draft, before the folder has its final name.
    sys.path.insert(0, str(folder.absolute()))
    try:
        # The import system may have listed the folder before these files were written.
        importlib.invalidate_caches()
        environment = f"{name}.env:ENVIRONMENT"
        panel = freeze_tasks(environment, "small", "test", options={}, each=PANEL_TASKS)
    finally:
        sys.path.remove(str(folder.absolute()))
    (folder / name / "panels").mkdir()
    write_panel(folder / name / "panels" / "small.json", panel)
