"""Executes the notebooks and keeps what they print and draw.

    python docs/make_notebooks.py                # all of them; train.ipynb trains for minutes
    python docs/make_notebooks.py worlds         # one

It needs `pip install nbclient ipykernel matplotlib` beside the package. Every notebook runs in an
empty folder, as in tests/test_notebooks.py.
"""

import json
import os
import re
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[1] / "notebooks"
# Executed elsewhere: its model is of the Hub.
NOT_HERE = ("colab",)
LOCAL = re.compile(r"/(home|root|tmp|work|Users)/")


def keep_output(output: dict) -> dict | None:
    """An output as it is committed: texts of stdout and pictures, None for all else."""
    if output["output_type"] == "stream":
        return output if output["name"] == "stdout" else None
    if output["output_type"] == "display_data":
        picture = {"image/png": output["data"]["image/png"]}
        return {"output_type": "display_data", "metadata": {}, "data": picture}
    return None


def keep_outputs(outputs: list[dict]) -> list[dict]:
    """The outputs of a cell as they are committed; neighbouring texts are one."""
    kept: list[dict] = []
    for output in map(keep_output, outputs):
        if output is None:
            continue
        if kept and output["output_type"] == kept[-1]["output_type"] == "stream":
            kept[-1]["text"] += output["text"]
        else:
            kept.append(output)
    for output in kept:
        if output["output_type"] == "stream":
            output["text"] = output["text"].splitlines(keepends=True)
    return kept


def execute_notebook(path: Path) -> None:
    """Runs a notebook from top to bottom and writes it with its outputs."""
    notebook = nbformat.read(path, as_version=4)
    # As in an activated environment: commands that a run prints are then names without a path.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(notebook, timeout=7200, resources={"metadata": {"path": folder}}).execute()
    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.outputs = keep_outputs(cell.outputs)
    notebook.metadata.pop("widgets", None)
    notebook.metadata["language_info"] = {"name": "python"}
    for cell in notebook.cells:
        cell.source = cell.source.splitlines(keepends=True)
    text = json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
    local = LOCAL.search(text)
    if local:
        raise SystemExit(f"{path.name} shows a path of this machine: {local[0]}")
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    names = sys.argv[1:] or [path.stem for path in sorted(FOLDER.glob("*.ipynb"))]
    for name in names:
        if name not in NOT_HERE:
            execute_notebook(FOLDER / f"{name}.ipynb")
